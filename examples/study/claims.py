"""The claims of the paper, each checked against the result folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cpr_wrap.metrics import parse_loss
from cpr_wrap.report.wording import loss_text
from study import paper
from study.paper import SEEN, UNSEEN
from study.read import Result, Results
from study.reasons import SCALE, base_networks, first_look, short
from study.single_claims import (
    ccat_rejects_nearby,
    larger_radius_helps,
    larger_radius_hurts,
    rcd_never_rejects,
    stronger_on_ccat,
    strongest_outer,
)
from study.stages import BASELINES, CPR
from study.verdict import (
    FAILS,
    Difference,
    Duel,
    Line,
    Verdict,
    decide,
    duel,
    losses_on,
    not_measured,
    paired,
    shared,
    tally,
)

SMALL_ALPHA = ("step:0", "step:0.01", "step:0.05", "step:0.1")
RAMPS = ("ramp:1", "ramp:2")
ALL = (*SMALL_ALPHA, "step:0.15", "step:0.2", *RAMPS, "ramp:3", "ramp:4")
FEW = ("step:0", "step:0.1", *RAMPS, "ramp:4")
NETWORKS = ("AT", "TRADES")


@dataclass(frozen=True, kw_only=True)
class Match:
    """CPR and the baselines that it is held against.

    Attributes:
        table: Our results by method.
        figures: The paper's.
        cpr: The methods of one side.
        baselines: Those of the other.
    """

    table: Mapping[str, Result]
    figures: paper.Figures
    cpr: tuple[str, ...] = CPR
    baselines: tuple[str, ...] = BASELINES

    @property
    def lacking(self) -> list[str]:
        """Methods without a result."""
        return [name for name in (*self.cpr, *self.baselines) if name not in self.table]

    @property
    def used(self) -> list[Result]:
        """The results that are compared."""
        return [self.table[name] for name in (*self.cpr, *self.baselines) if name in self.table]

    def line(self, one: Duel) -> Line:
        """A line of a table about one loss."""
        name = loss_text(parse_loss(one.loss))
        theirs = [_best(self.figures, side, one.loss) for side in (self.cpr, self.baselines)]
        sides = zip((one.cpr, one.baseline), one.losses, strict=True)
        ours = [f"{result.method} {loss:.3f}" for result, loss in sides]
        return [name, *theirs, *ours, str(one.difference), str(one.difference.images)]

    def cited(self, losses: Sequence[str]) -> str:
        """The paper's figures in a sentence."""
        texts = [
            f"{loss_text(parse_loss(loss))}: {_best(self.figures, self.cpr, loss)}, "
            f"{_best(self.figures, self.baselines, loss)}"
            for loss in losses
        ]
        return "; ".join(texts)


def _best(figures: paper.Figures, methods: Sequence[str], loss: str) -> str:
    method = min(methods, key=lambda name: figures[name][loss])
    return f"{method} {figures[method][loss]:.3f}"


def small_alpha_seen(results: Results) -> Verdict:
    """CPR against the baselines for small alpha, at the budget of the training."""
    claim = "Under seen attacks CPR has the smallest total robust loss where α₀ is small"
    match = Match(table=results.table(SEEN), figures=paper.LOSSES[SEEN])
    return _compared(results, claim, match, SMALL_ALPHA)


def all_losses_unseen(results: Results) -> Verdict:
    """CPR against the baselines in every loss, beyond the budget of the training."""
    claim = "Under unseen attacks CPR has the smallest total robust loss in every rejection loss"
    match = Match(table=results.table(UNSEEN), figures=paper.LOSSES[UNSEEN])
    return _compared(results, claim, match, ALL)


def ramps_seen(results: Results) -> Verdict:
    """The exception: what CPR pays where rejecting large perturbations is an error."""
    claim = "Under seen attacks CPR is worse than the best baseline for the ramps t = 1 and t = 2"
    match = Match(table=results.table(SEEN), figures=paper.LOSSES[SEEN])
    return _compared(results, claim, match, RAMPS, cpr_wins=False)


def cifar10_seen(results: Results) -> Verdict:
    """CPR against confidence on CIFAR-10, at the budget of the training."""
    return _cifar10(results, SEEN)


def cifar10_unseen(results: Results) -> Verdict:
    """CPR against confidence on CIFAR-10, beyond the budget of the training."""
    return _cifar10(results, UNSEEN)


def _cifar10(results: Results, budget: str) -> Verdict:
    claim = f"On CIFAR-10 AT+CPR has a smaller total robust loss than AT+CR under {budget} attacks"
    match = Match(
        table=results.table(budget, "cifar10"),
        figures=paper.CIFAR10_LOSSES[budget],
        cpr=("AT+CPR",),
        baselines=("AT+CR",),
    )
    return _compared(results, claim, match, FEW)


def _compared(
    results: Results, claim: str, match: Match, losses: Sequence[str], *, cpr_wins: bool = True
) -> Verdict:
    """The verdict on a claim that CPR wins, or loses, in every one of some losses."""
    found = (duel(match.table, match.cpr, match.baselines, loss) for loss in losses)
    duels = [one for one in found if one]
    lacking = match.lacking
    absent = f"Without a result, and so not in the comparison: {', '.join(lacking)}."
    if len(duels) < len(losses):
        return not_measured(claim, match.cited(losses), absent)
    # The claim says that these are positive.
    differences = [-one.difference if cpr_wins else one.difference for one in duels]
    word = decide(differences, complete=not lacking)
    remarks = ["" if cpr_wins else _exactly(duels), absent * bool(lacking)]
    remarks.append(first_look(match.used))
    if word == FAILS:
        remarks += [base_networks(results), SCALE]
    methods = len(match.cpr + match.baselines)
    limits = [
        *tally(differences),
        f"{len(lacking)} of {methods} methods missing" * bool(lacking),
        *short(match.used),
    ]
    return Verdict(
        claim=claim,
        paper="",
        verdict=word,
        head=("Loss", "paper: CPR", "paper: baseline", "CPR", "baseline", "difference", "n"),
        lines=tuple(map(match.line, duels)),
        remarks=tuple(filter(None, remarks)),
        limits=tuple(filter(None, limits)),
    )


def _exactly(duels: Sequence[Duel]) -> str:
    """The same comparison with the curve integrated exactly."""
    texts, worse = [], []
    for one in duels:
        ours, theirs = (r.curve.total_robust_loss(one.loss) for r in (one.cpr, one.baseline))
        worse.append(ours > theirs)
        name = loss_text(parse_loss(one.loss))
        texts.append(f"{name}: {one.cpr.method} {ours:.3f}, {one.baseline.method} {theirs:.3f}")
    return (
        f"Measured: integrated exactly, CPR is worse in {sum(worse)} of {len(worse)} "
        f"({'; '.join(texts)}); see the section on ramps."
    )


def rejection_helps(results: Results) -> Verdict:
    """The same network with CPR and without rejection."""
    claim = "At α = 0 a network with CPR is more robust than the same network without rejection"
    figures = paper.TRADITIONAL
    lines: list[Line] = []
    differences: list[Difference] = []
    used: list[Result] = []
    for budget in (SEEN, UNSEEN):
        for base in NETWORKS:
            pair = _with_and_without(results.table(budget), base)
            if pair is None:
                continue
            with_cpr, without, difference = pair
            on = shared([with_cpr, without])
            kept = [100 - 100 * losses_on(r, "step:0", on).mean() for r in (with_cpr, without)]
            differences.append(difference)
            used += [with_cpr, without]
            lines.append(
                [
                    f"{base}, {budget}",
                    *(f"{figures[name][budget]:.2f}" for name in (f"{base}+CPR", base)),
                    *(f"{share:.1f}" for share in kept),
                    f"{100 * difference.gap:+.1f} ({difference.how})",
                    str(difference.images),
                ]
            )
    if not lines:
        return not_measured(claim, "see the table of traditional metrics", "No network has both.")
    wanted = 2 * len(NETWORKS)
    lacking = f"{wanted - len(lines)} of {wanted} comparisons missing" * (len(lines) < wanted)
    word = decide(differences, complete=not lacking)
    return Verdict(
        claim=claim,
        paper="",
        verdict=word,
        head=(
            *("Robustness, %", "paper: CPR", "paper: none", "CPR", "none"),
            *("difference (errors of none : CPR)", "n"),
        ),
        lines=tuple(lines),
        remarks=tuple(filter(None, [first_look(used), SCALE * (word == FAILS)])),
        limits=tuple(filter(None, [*tally(differences), lacking, *short(used)])),
    )


def _with_and_without(
    table: Mapping[str, Result], base: str
) -> tuple[Result, Result, Difference] | None:
    """A network with CPR, without rejection, and how much more robust the first is."""
    with_cpr, without = table.get(f"{base}+CPR"), table.get(base)
    if with_cpr is None or without is None:
        return None
    difference = paired(without, with_cpr, "step:0")
    return None if difference is None else (with_cpr, without, difference)


CLAIMS: tuple[Callable[[Results], Verdict], ...] = (
    small_alpha_seen,
    all_losses_unseen,
    ramps_seen,
    rejection_helps,
    ccat_rejects_nearby,
    stronger_on_ccat,
    rcd_never_rejects,
    larger_radius_helps,
    larger_radius_hurts,
    strongest_outer,
    cifar10_seen,
    cifar10_unseen,
)
