"""Claims of the paper about one method, one attack or one setting."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from cpr_wrap.metrics import clopper_pearson
from study import paper
from study.paper import SEEN, UNSEEN
from study.read import Result, Results
from study.reasons import SCALE, first_look, short
from study.verdict import (
    FAILS,
    HOLDS,
    UNDECIDED,
    Difference,
    Verdict,
    counted,
    decide,
    not_measured,
    paired,
    percent_of,
    tally,
)

_NEARLY_ALL = 0.9


def _searched(results: Results, method: str, budget: str) -> Result | None:
    """The search for rejections alone, on every image of a method."""
    eps = paper.EPS[budget]
    found = (r for r in results.of("rejections") if r.method == method and r.has_eps(eps))
    return next(found, None)


def ccat_rejects_nearby(results: Results) -> Verdict:
    """CCAT's answer close to clean images."""
    within, share = paper.CCAT_REJECTED_WITHIN, paper.CCAT_REJECTED_SHARE
    claim = (
        f"CCAT can be made to reject an input within {within:g} of {100 * share:.1f} % of the "
        f"images at ε = {paper.EPS[UNSEEN]:g}"
    )
    cited = f"{100 * share:.2f} %, in the introduction"
    result = _searched(results, "CCAT", UNSEEN)
    if result is None:
        return not_measured(claim, cited, "Rejections of CCAT were not looked for at this ε.")
    count, total = rejected_within(result, within)
    interval = clopper_pearson(count, total)
    near = HOLDS if interval.low >= _NEARLY_ALL else UNDECIDED
    word = near if interval.high >= share else FAILS
    measured = (
        f"{percent_of(count, total)} of the images, 95 % interval {100 * interval.low:.1f} to "
        f"{100 * interval.high:.1f} %; the claim holds if the interval reaches the paper's share "
        f"and lies above {100 * _NEARLY_ALL:g} %"
    )
    return Verdict(
        claim=claim,
        paper=cited,
        verdict=word,
        measured=(measured,),
        remarks=(SCALE,) if word == FAILS else (),
        limits=(f"{100 * count / total:.1f} % here",),
    )


def rejected_within(result: Result, radius: float) -> tuple[int, int]:
    """Images of which a rejected input is known within a radius, and those searched.

    A mistake on the clean image that is accepted ends the search before it begins.
    """
    searched = ~result.curve.records.outer_broken
    return int((searched & (result.curve.radii <= radius)).sum()), int(searched.sum())


def rcd_never_rejects(results: Results) -> Verdict:
    """RCD's reject class."""
    claim = "RCD never rejects"
    rate = paper.TRADITIONAL["RCD"]["rejection_rate"]
    flat = paper.LOSSES[SEEN]["RCD"]
    cited = (
        f"{rate:.2f} % of clean inputs rejected, and the same loss of {flat['step:0']:.3f} for "
        "every rejection loss under seen attacks"
    )
    found = [_searched(results, "RCD", budget) for budget in (SEEN, UNSEEN)]
    present = [result for result in found if result is not None]
    if not present:
        return not_measured(claim, cited, "Rejections of RCD were not looked for.")
    measured, never = [], True
    for result in present:
        clean, total = rejected_within(result, 0.0)
        forced, _ = rejected_within(result, result.curve.eps)
        never = never and forced == 0
        measured.append(
            f"ε = {result.curve.eps:g}: {percent_of(clean, total)} rejected when clean, and a "
            f"rejected input found within ε for {percent_of(forced, total)}"
        )
    asked = "Measured: rejections were looked for on all images without an accepted clean mistake"
    remarks = [f"{asked}; that none was found is no proof."] if never else [f"{asked}.", SCALE]
    lacking = f"{len(found) - len(present)} of {len(found)} budgets missing"
    return Verdict(
        claim=claim,
        paper=cited,
        verdict=(HOLDS if len(present) == len(found) else UNDECIDED) if never else FAILS,
        measured=tuple(measured),
        remarks=tuple(remarks),
        limits=(lacking,) * (len(present) < len(found)),
    )


def larger_radius_helps(results: Results) -> Verdict:
    """Robustness at alpha 0 along the radii."""
    claim = "A larger radius raises the robustness at α = 0"
    return _along_radii(results, claim, 0.0, rising=True)


def larger_radius_hurts(results: Results) -> Verdict:
    """Robustness at alpha 1 along the radii."""
    claim = "A larger radius lowers the robustness at α = 1"
    return _along_radii(results, claim, 1.0, rising=False)


def _along_radii(results: Results, claim: str, alpha: float, *, rising: bool) -> Verdict:
    cited = "stated in the text and drawn in a figure, without numbers"
    row = {
        float(r.study["radius"]): r
        for r in results.of("radius")
        if r.study["images"] == "robust" and int(r.study["steps"]) == paper.STEPS
    }
    if len(row) < 2:
        return not_measured(claim, cited, f"The radius stage lacks radii at m = {paper.STEPS}.")
    sizes = sorted(row)
    steps = [
        _gain(row[small], row[large], alpha, rising=rising) for small, large in pairwise(sizes)
    ]
    whole = _gain(row[sizes[0]], row[sizes[-1]], alpha, rising=rising)
    against = [step for step in steps if step.sign < 0]
    complete = set(sizes) >= set(paper.RADII)
    word = FAILS if against else decide([whole], complete=complete)
    values = "; ".join(
        f"radius {size:g}: {100 * row[size].curve.accuracy_at(alpha):.1f} %" for size in sizes
    )
    ends = f"{'Raised' if rising else 'Lowered'} from {sizes[0]:g} to {sizes[-1]:g} by {whole}"
    remarks = ["Measured: one step is against it beyond chance." * bool(against)]
    remarks += [first_look(row.values()), _clean_rejections(row) if rising else ""]
    return Verdict(
        claim=claim,
        paper=cited,
        verdict=word,
        measured=(f"m = {paper.STEPS}, n = {whole.images}: {values}", ends),
        remarks=tuple(filter(None, [*remarks, SCALE * (word == FAILS)])),
        limits=(
            *tally([whole]),
            *(f"{len(sizes)} of {len(paper.RADII)} radii",) * (not complete),
            *short(row.values()),
        ),
    )


def _gain(small: Result, large: Result, alpha: float, *, rising: bool) -> Difference:
    """How far the claimed way the robustness goes from one radius to a larger one."""
    loss = f"step:{alpha:g}"
    difference = paired(small, large, loss) if rising else paired(large, small, loss)
    if difference is None:
        raise ValueError(f"expected the same images in {small.folder} and {large.folder}, got none")
    return difference


def _clean_rejections(row: dict[float, Result]) -> str:
    """At alpha 0 a rejected clean input is an error, and there are more with a larger radius."""
    shares = "; ".join(
        f"radius {size:g}: {int((row[size].curve.records.clean_label == -1).sum())}"
        for size in sorted(row)
    )
    return f"Measured: clean inputs rejected, which are errors at α = 0 too: {shares}."


def strongest_outer(results: Results) -> Verdict:
    """CHCMOA among the outer attacks."""
    claim = "CHCMOA is the strongest outer attack on CPR"
    names = ("AutoAttack", "HCMOA", "CHCMOA")
    cited = "; ".join(
        f"{method}: " + ", ".join(f"{name} {row[name]:.2f} %" for name in names)
        for method, row in paper.ATTACKS.items()
    )
    measured: list[str] = []
    leads: list[Difference] = []
    used: list[Result] = []
    methods = set()
    for result in results.of("attacks"):
        rows = {r["attack"]: r for r in result.details["ablation"] or [] if r["alpha"] == 0.0}
        if "CHCMOA" not in rows or len(rows) < 2:
            continue
        if result.on_mnist:
            methods.add(result.method)
        leads += _leads(rows, result.images).values()
        used.append(result)
        listed = ", ".join(f"{name} {100 * row['robustness']:.1f} %" for name, row in rows.items())
        against = ", ".join(f"{name} {lead}" for name, lead in _leads(rows, result.images).items())
        measured.append(
            f"{result.where}, n = {result.images}: {listed} left; errors of CHCMOA more than of "
            f"{against}"
        )
    if not leads:
        return not_measured(claim, cited, "The stage of single attacks has no result.")
    lacking = sorted(set(paper.ATTACKS) - methods)
    few = (
        "Measured: attacks that break nearly the same images cannot be ranked; even if one breaks "
        "all that another does, six images more are needed to be beyond chance."
    )
    word = decide(leads, complete=not lacking)
    return Verdict(
        claim=claim,
        paper=cited,
        verdict=word,
        measured=tuple(measured),
        remarks=tuple(filter(None, [few * (word == UNDECIDED), SCALE * (word == FAILS)])),
        limits=(
            *tally(leads),
            *(f"{', '.join(lacking)} missing",) * bool(lacking),
            *short(used),
        ),
    )


def _leads(rows: dict[str, Any], images: int) -> dict[str, Difference]:
    """How many images more CHCMOA breaks than each other attack."""
    best = set(rows["CHCMOA"]["lost"])
    others = {name: set(row["lost"]) for name, row in rows.items() if name != "CHCMOA"}
    return {
        name: counted(len(best - lost), len(lost - best), images) for name, lost in others.items()
    }


def stronger_on_ccat(results: Results) -> Verdict:
    """HCMOA against CCAT's own attack."""
    claim = "HCMOA breaks CCAT more often than PGD with backtracking does"
    cited = "; ".join(
        f"{name} leaves {row[SEEN]:.2f} % seen and {row[UNSEEN]:.2f} % unseen"
        for name, row in paper.CCAT.items()
    )
    measured: list[str] = []
    differences: list[Difference] = []
    for eps in paper.EPS.values():
        left = {str(r.study["attack"]): r for r in results.of("ccat") if r.has_eps(eps)}
        if len(left) < 2:
            continue
        difference = paired(left["HCMOA"], left["PGD-backtracking"], "step:0")
        if difference is not None:
            differences.append(difference)
            texts = [f"{name} {100 * r.curve.accuracy_at(0.0):.1f} %" for name, r in left.items()]
            measured.append(
                f"ε = {eps:g}, n = {difference.images}: {', '.join(texts)} left, errors of HCMOA "
                f"more by {difference}"
            )
    if not differences:
        return not_measured(claim, cited, "The CCAT stage has no result.")
    lacking = f"{2 - len(differences)} of 2 budgets missing" * (len(differences) < 2)
    word = decide(differences, complete=not lacking)
    return Verdict(
        claim=claim,
        paper=cited,
        verdict=word,
        measured=tuple(measured),
        remarks=(SCALE,) if word == FAILS else (),
        limits=(*tally(differences), *(lacking,) * bool(lacking), *short(results.of("ccat"))),
    )
