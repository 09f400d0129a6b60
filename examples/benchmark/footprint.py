"""One evaluation in a process of its own: what it cost, and how much memory it took at most."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from cpr_wrap.evaluation import robustness_curve
from cpr_wrap.selective import SelectiveClassifier


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What an evaluation took; sizes are in bytes of the process's resident memory.

    Attributes:
        images: How many images.
        passes: Forwards and backwards.
        seconds: Wall time.
        cpu_seconds: Processor time.
        inputs: Size of the images and labels.
        results: Size of the points that the result keeps.
        before: What the process held with the model loaded and warm, before the images.
        peak: The most it ever held.
    """

    images: int
    passes: int
    seconds: float
    cpu_seconds: float
    inputs: int
    results: int
    before: int
    peak: int

    @property
    def working(self) -> int:
        """Memory at the peak beyond what was there before, the inputs and the results."""
        return self.peak - self.before - self.inputs - self.results


def footprint(
    model: SelectiveClassifier,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    times: int = 1,
    budget: str = "quick",
    batch_size: int = 128,
    block_size: int | None = None,
) -> Footprint:
    """Evaluate images, each several times over, in a fresh process with as many threads.

    Args:
        model: The selective classifier; it is pickled.
        x: Images `(N, ...)`.
        y: True classes `(N,)`.
        eps: Budget of the adversary.
        times: How often each image is taken.
        budget: As in `robustness_curve`.
        batch_size: As in `robustness_curve`.
        block_size: As in `robustness_curve`.
    """
    settings = {"eps": eps, "budget": budget, "batch_size": batch_size, "block_size": block_size}
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.pt"
        torch.save((model, x, y, times, torch.get_num_threads(), settings), job)
        done = subprocess.run(
            [sys.executable, "-m", "examples.benchmark.footprint", str(job)],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"the measuring process failed: {done.stderr.strip()[-2000:]}")
    return Footprint(**json.loads(done.stdout))


def resident() -> tuple[int, int]:
    """Memory that this process holds, and the most it ever held, in bytes.

    Not by `getrusage` where there is another way: under Linux its peak begins with the parent's,
    which a process inherits when it is started.
    """
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        now, most = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
        return now, most
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    most *= 1 if sys.platform == "darwin" else 1024
    return most, most


def _main(job: str) -> None:
    # Our own file, a moment old; a model is more than weights.
    model, x, y, times, threads, settings = torch.load(job, weights_only=False)
    torch.set_num_threads(threads)
    robustness_curve(model, x[:2], y[:2], **settings)  # loads and allocates what any run needs
    before, _ = resident()
    images, labels = _repeated(x, times), _repeated(y, times)
    wall, cpu = time.perf_counter(), time.process_time()
    curve = robustness_curve(model, images, labels, **settings)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    answer = Footprint(
        images=len(images),
        passes=sum(stage.passes for stage in curve.passes),
        seconds=wall,
        cpu_seconds=cpu,
        inputs=_size(images) + _size(labels),
        results=sum(_size(points) for points in vars(curve.points).values()),
        before=before,
        peak=resident()[1],
    )
    print(json.dumps(asdict(answer)))


def _size(t: Tensor) -> int:
    return t.numel() * t.element_size()


def _repeated(t: Tensor, times: int) -> Tensor:
    return torch.cat([t] * times)


if __name__ == "__main__":
    _main(sys.argv[1])
