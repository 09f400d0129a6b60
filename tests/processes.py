"""New Python processes that need not import torch, which takes seconds.

One process per session has imported the package and forks a copy of itself for every start. A copy
runs `-c code` or `-m module` as a new interpreter would, in a folder and an environment of its own,
and exits as interpreters do.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Process:
    """A process that was started; its output goes to two files."""

    words: tuple[str, ...]
    pid: int
    files: tuple[Path, Path]

    def wait(self, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Its exit code, negative after a signal, and what it printed."""
        deadline = time.monotonic() + timeout
        while (code := _ask({"wait": self.pid})) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(list(self.words), timeout)
            time.sleep(0.005)
        texts = [file.read_text() for file in self.files]
        return subprocess.CompletedProcess(list(self.words), code, *texts)


def start(*words: str, cwd: Path | str | None = None, env: dict[str, str] | None = None) -> Process:
    """Start `python WORDS`, where the words begin with -c or -m; `env` is added to our own."""
    assert words[0] in ("-c", "-m")
    folder = Path(tempfile.mkdtemp(dir=_folder()))
    files = (folder / "stdout", folder / "stderr")
    job = {
        "words": words,
        "cwd": str(cwd or Path.cwd()),
        "env": {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        "files": [str(file) for file in files],
    }
    return Process(words, _ask(job), files)


def run(*words: str, **options) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` to its end."""
    return start(*words, **options).wait()


def run_ranks(world: int, *words: str, **options) -> list[subprocess.CompletedProcess[str]]:
    """Run the same in so many processes that can find each other, without torchrun."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    own = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
    started = [start(*words, env={**shared, **each}, **options) for each in own]
    return [process.wait() for process in started]


@cache
def _folder() -> Path:
    kept = tempfile.TemporaryDirectory()
    atexit.register(kept.cleanup)
    return Path(kept.name)


@cache
def _server() -> subprocess.Popen:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.processes"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    atexit.register(server.communicate)
    return server


def _ask(question: dict) -> int | None:
    server = _server()
    server.stdin.write(json.dumps(question).encode() + b"\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())


def _serve() -> dict | None:
    """Answer questions; gives a job in each copy, and nothing when there are no more questions."""
    for line in iter(sys.stdin.buffer.readline, b""):
        question = json.loads(line)
        if "wait" in question:
            pid, status = os.waitpid(question["wait"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                return question
        os.write(1, json.dumps(answer).encode() + b"\n")
    return None


def _become(job: dict) -> None:
    """Be the process that was asked for, in the place of a copy."""
    for number, name in enumerate([os.devnull, *job["files"]]):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
        os.dup2(os.open(name, flags, 0o600), number)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    (kind, what, *words) = job["words"]
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    rest = [path for path in sys.path if path and Path(path) != ROOT and path not in given]
    sys.path[:] = ["" if kind == "-c" else job["cwd"], *given, *rest]
    sys.argv[:] = [kind, *words]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), main.__dict__)


def _import() -> None:
    for name in ("torch.distributed.run", "scipy.stats", "rich.progress", "cpr_wrap.cli"):
        import_module(name)
    import_module("tests.evaluation.test_curve")
    package = import_module("cpr_wrap")
    for name in package.__all__:
        getattr(package, name)
    gc.freeze()  # what the copies share is not theirs to collect


if __name__ == "__main__":
    _import()
    if (job := _serve()) is not None:
        _become(job)
