"""Files that are there whole or not at all, and that notice when a byte of them has changed."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_PART = ".part-"
_OURS = f"{_PART}{os.uname().nodename if hasattr(os, 'uname') else ''}-"
_STALE_SECONDS = 3600.0  # no writer takes as long, so its process is gone


def digest(*parts: bytes | memoryview | str | Tensor) -> str:
    """A SHA-256 of texts and tensors (type, shape and bytes), as 64 hexadecimal digits."""
    sha = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            data = part.detach().cpu().contiguous()
            sha.update(f"{data.dtype}{tuple(data.shape)}".encode())
            if data.numel():  # no bytes of nothing: its strides may be 0
                sha.update(data.reshape(-1).view(torch.uint8).numpy().data)
        else:
            sha.update(part.encode() if isinstance(part, str) else part)
    return sha.hexdigest()


def write_atomically(file: Path, data: bytes | str) -> None:
    """Write a file in one step: a kill leaves the old version or the new one.

    The file gets the permissions of any new file in its folder, and the folder is made if needed.
    What writers that were killed left behind in the folder is removed. Text is written as UTF-8.
    """
    write_in_order({file: data})


def write_in_order(files: Mapping[Path, bytes | str]) -> None:
    """Write files as `write_atomically` does; replace the old ones at the end, in this order."""
    written: dict[Path, Path] = {}
    try:
        for file, data in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(file.parent.resolve())
            temporary = file.parent / f"{_OURS}{os.getpid()}-{secrets.token_hex(8)}"
            written[file] = temporary
            # Not tempfile.mkstemp: its files can be read by their owner only.
            handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            with os.fdopen(handle, "wb") as out:
                out.write(data.encode() if isinstance(data, str) else data)
                out.flush()
                os.fsync(out.fileno())
        for file, temporary in written.items():
            temporary.replace(file)
    except BaseException:
        for temporary in written.values():
            temporary.unlink(missing_ok=True)
        raise


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as safetensors, in one step; each with memory of its own, wherever it is."""
    from safetensors.torch import save

    # clone() alone would keep the strides of channels_last.
    alone = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    write_atomically(file, save(alone))


@functools.cache
def _remove_leftovers(folder: Path) -> None:
    """Remove old temporary files from a folder, once for each folder and process."""
    now = time.time()
    for entry in folder.glob(f"{_PART}*"):
        # Another process may be faster, or the file not ours to remove.
        with contextlib.suppress(OSError):
            if now - entry.stat().st_mtime > _STALE_SECONDS or _is_orphan(entry.name):
                entry.unlink()


def _is_orphan(name: str) -> bool:
    """Whether a temporary file's writer ran on this machine, and is gone."""
    process = name.removeprefix(_OURS).partition("-")[0]
    if not name.startswith(_OURS) or not process.isdecimal():
        return False
    try:
        os.kill(int(process), 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


def write_sealed(file: Path, layout: str, content: Mapping[str, Any]) -> None:
    """Write tensors, numbers and texts, in lists and dictionaries, under a seal.

    The seal is a line that names their layout, `layout`, and a digest of all.
    """
    # Not safetensors: strides and shared memory come back too, and networks round by strides.
    buffer, head = io.BytesIO(), f"{layout}\n".encode()
    torch.save(dict(content), buffer)
    data = buffer.getvalue()
    write_atomically(file, head + digest(head, data).encode() + data)


def read_sealed(
    file: Path,
    layout: str,
    device: torch.device | str = "cpu",
    *,
    older: bytes | None = None,
) -> dict[str, Any]:
    """Read what `write_sealed` wrote; `older` is how files began before they were sealed.

    Raises:
        OSError: There is no such file, or it cannot be read.
        ValueError: It is whole, but has another layout.
        RuntimeError: It is damaged.
    """
    whole = file.read_bytes()
    line, _, rest = whole[:200].partition(b"\n")
    head, data = line + b"\n", memoryview(whole)[len(line) + 1 + 64 :]
    sealed = rest[:64] == digest(head, data).encode()
    if sealed and line == layout.encode():
        content: dict[str, Any] = torch.load(
            io.BytesIO(data), map_location=device, weights_only=True
        )
        return content
    if sealed or (older is not None and whole.startswith(older)):
        raise ValueError(f"{file} was written by another version of cpr-wrap, not as {layout!r}")
    raise RuntimeError(f"{file} is damaged: its content does not match its digest")
