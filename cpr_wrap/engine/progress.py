"""Tells how far an evaluation is, to a function or as a bar in the terminal.

Its unit is the pass. What a stage costs is measured on the blocks that it has finished; before that
it is guessed from its settings.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from cpr_wrap.attacks.adaptive import Attack, Halving, Stage
from cpr_wrap.engine import ranks
from cpr_wrap.engine.block import Block
from cpr_wrap.meter import Passes, count_passes
from cpr_wrap.objective import Goal, Targets
from cpr_wrap.rule import RejectionRule

if TYPE_CHECKING:
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.table import Table

_UNKNOWN = 300.0  # passes per image of an attack from elsewhere


@dataclass(frozen=True, kw_only=True)
class Status:
    """Progress of an evaluation."""

    images_done: int  #: Images finished.
    images: int  #: All images.
    attack: str  #: The stage that has just finished.
    fraction: float  #: Passes done, as a share of the expected ones.
    passes: int  #: Passes so far.
    passes_expected: int  #: Expected total number of passes.
    seconds: float  #: Time so far.
    seconds_left: float  #: Estimated time left.
    error_at_0: float  #: Robust error at alpha = 0 among the images seen so far.
    error_at_1: float  #: The same at alpha = 1.


def guess(stages: Iterable[Stage], rule: RejectionRule) -> list[float]:
    """Passes per image that the clean verdict and each stage may take, from their settings."""
    return [float(rule.cost.total), *(_guess(stage, rule) for stage in stages)]


def _guess(stage: Stage, rule: RejectionRule) -> float:
    if isinstance(stage, Halving):
        return float(stage.rounds * (1 if stage.goal is Goal.MISTAKE else rule.cost.total))
    if not isinstance(stage, Attack):
        return _UNKNOWN
    asks = bool(stage.objective.path or stage.objective.score)
    step = 2 + asks * (rule.stand_in() if stage.stand_in else rule).cost.total
    starts = len(stage.starts) if isinstance(stage.starts, tuple) else 2
    targets = 1 if stage.objective.targets is Targets.NONE else stage.targets or 9
    return float(step * stage.steps * starts * targets * (stage.rounds or len(stage.alphas)))


class Progress:
    """Collects what the blocks report and passes it on. With several ranks, rank 0 speaks.

    It tells a function, or if `wish` is True, a bar in the terminal: on standard error, so that
    results can be piped.
    """

    def __init__(
        self,
        wish: bool | Callable[[Status], None] | None,
        images: int,
        costs: Sequence[float],
    ) -> None:
        self.wish = wish if ranks.rank() == 0 else None
        self.images, self.guessed = images, costs
        self.spent, self.seen = [0] * len(costs), [0] * len(costs)  # for each unit of a block
        self.blocks: dict[int, Counter[str]] = {}  # what is known of each
        self.heard = 0  # passes of all units
        self.before = 0  # passes of this session until the last one
        self.reached = 0.0
        self.started = time.perf_counter()
        self.attack = "starting"
        self.meter, self.held = Passes(), ExitStack()

    def __enter__(self) -> Self:
        self.meter = self.held.enter_context(count_passes())
        if self.wish is True:
            bar = _live(self._line)
            if not bar.console.is_interactive:
                self.held.callback(bar.console.print)  # in a file, it does not end its line
            self.held.enter_context(bar)
        return self

    def __exit__(self, *_: object) -> None:
        self.held.close()

    def listen(self, block: Block, stage: str, passes: Passes) -> None:
        """Hear of a finished unit."""
        number = int(block.index[0])
        unit = self.blocks[number]["units"] if number in self.blocks else 0
        if unit < len(self.spent):  # rounds come after these
            self.spent[unit] += passes.total
            self.seen[unit] += len(block)
        self.blocks[number] = Counter(units=unit + 1, images=len(block), **_errors(block))
        self.heard += passes.total
        self.before = self.meter.total
        self.attack = stage
        if callable(self.wish):
            self.wish(self.status())

    def status(self) -> Status:
        """Where the evaluation stands."""
        everyone = ranks.world_size()
        done = self.heard + self.meter.total - self.before
        total = max(done, self._total(self.images / everyone), 1)
        seconds = time.perf_counter() - self.started
        self.reached = max(self.reached, min(1.0, done / total))  # a bar does not run backwards
        # What comes from a store was paid for in another session.
        speed = max(1, self.meter.total) / max(seconds, 1e-9)
        known = self.known()
        return Status(
            images_done=min(self.images, self.seen[-1] * everyone),
            images=self.images,
            attack=self.attack,
            fraction=self.reached,
            passes=done * everyone,
            passes_expected=round(total * everyone),
            seconds=seconds,
            seconds_left=(total - done) / speed,
            error_at_0=known["at_0"] / max(1, known["images"]),
            error_at_1=known["at_1"] / max(1, known["images"]),
        )

    def known(self) -> Counter[str]:
        """Images and errors among all blocks."""
        # A copy: a bar is drawn by a thread of its own, while blocks are added.
        return sum(list(self.blocks.values()), Counter())

    def _total(self, images: float) -> float:
        """Passes that this rank's share of the images will have taken."""
        known = [i for i, seen in enumerate(self.seen) if seen]
        guessed = sum(self.guessed[i] * self.seen[i] for i in known)
        scale = sum(self.spent) / guessed if guessed else 1.0
        return sum(
            spent + (images - seen) * (spent / seen if seen else scale * cost)
            for spent, seen, cost in zip(self.spent, self.seen, self.guessed, strict=True)
        )

    def _line(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        status, known, everyone = self.status(), self.known(), ranks.world_size()
        left = round(status.seconds_left)
        clock = f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
        found = sorted({known["at_0"] * everyone, known["at_1"] * everyone})
        line = Table.grid(padding=(0, 1), expand=True)
        line.add_column()
        line.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        # The time comes first, and the attack last: what does not fit is cut off at the end.
        line.add_row(
            ProgressBar(total=1.0, completed=status.fraction, width=8),
            f"{status.fraction:4.0%} {clock if status.passes else '-:--:--'} left "
            f"{_short(status.passes)}/{_short(status.passes_expected)} passes "
            f"{status.images_done}/{status.images} images {'-'.join(map(str, found))} errors "
            f"{status.attack}",
        )
        return line


def _live(look: Callable[[], Any], **options: Any) -> Live:
    """A line on standard error that looks, whenever it is drawn, at what it shows."""
    from rich.console import Console
    from rich.live import Live

    return Live(get_renderable=look, console=Console(stderr=True), **options)


@contextmanager
def busy(what: str, after: float = 2.0) -> Iterator[None]:
    """Show on standard error, after some seconds, what goes on and how much it did."""
    from rich.spinner import Spinner

    started, spinner = time.perf_counter(), Spinner("dots")

    def look() -> Spinner:
        passes = f", {_short(spent.total)} passes" if spent.total else ""
        spinner.update(text=f"{what}: {time.perf_counter() - started:.0f} s{passes}")
        return spinner

    with count_passes() as spent:
        live = _live(look, transient=True)
        if ranks.rank() != 0 or not live.console.is_terminal:
            yield
            return
        timer = threading.Timer(after, live.start)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            live.stop()


def _short(number: float) -> str:
    """A number in four characters: 950, 12k, 1.2M, 340M, 2.5G."""
    for unit in ("", "k", "M", "G"):
        if number < 999.5:
            return f"{number:.1f}{unit}" if number < 9.95 and unit else f"{number:.0f}{unit}"
        number /= 1000
    return f"{number:.0f}T"


def _errors(block: Block) -> dict[str, int]:
    broken = block.found[Goal.ACCEPTED_MISTAKE].known
    rejected = block.found[Goal.REJECTED]
    at_0, at_1 = broken | (rejected.distance == 0), broken | rejected.known
    return {"at_0": int(at_0.sum()), "at_1": int(at_1.sum())}
