"""The claims of the paper, each checked against the result folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from cpr_wrap.metrics import clopper_pearson, parse_loss
from cpr_wrap.metrics.clean import robust_accuracy_with_detection
from cpr_wrap.report.wording import loss_text
from study import paper
from study.paper import SEEN, UNSEEN
from study.read import Result, Results
from study.stages import BASELINES, CPR
from study.verdict import Duel, Verdict, decide, duel, not_measured, percent_of

SMALL_ALPHA = ("step:0", "step:0.01", "step:0.05", "step:0.1")
RAMPS = ("ramp:1", "ramp:2")
ALL = (*SMALL_ALPHA, "step:0.15", "step:0.2", *RAMPS, "ramp:3", "ramp:4")

SCALE = (
    "Conjecture: the networks here are smaller than the paper's and were trained for a shorter "
    "time, which moves every figure."
)


def small_alpha_seen(results: Results) -> Verdict:
    """CPR against the baselines for small alpha, at the budget of the training."""
    claim = "Under seen attacks CPR has the smallest total robust loss where α₀ is small"
    return _against_baselines(results, claim, SEEN, SMALL_ALPHA, cpr_wins=True)


def all_losses_unseen(results: Results) -> Verdict:
    """CPR against the baselines in every loss, beyond the budget of the training."""
    claim = "Under unseen attacks CPR has the smallest total robust loss in every rejection loss"
    return _against_baselines(results, claim, UNSEEN, ALL, cpr_wins=True)


def ramps_seen(results: Results) -> Verdict:
    """The exception: what CPR pays where rejecting large perturbations is an error."""
    claim = "Under seen attacks CPR is worse than the best baseline for the ramps t = 1 and t = 2"
    return _against_baselines(results, claim, SEEN, RAMPS, cpr_wins=False)


def _against_baselines(
    results: Results, claim: str, budget: str, losses: Sequence[str], *, cpr_wins: bool
) -> Verdict:
    table = results.table(budget)
    cited = _paper_duels(budget, losses)
    duels = [duel(table, CPR, BASELINES, loss) for loss in losses]
    found = [one for one in duels if one is not None]
    if len(found) < len(losses):
        return not_measured(claim, cited, _lacking(table))
    holds = all(one.gap < 0 if cpr_wins else one.gap > 0 for one in found)
    remarks = [_undecided(found), _lacking(table), _first_look(table.values())]
    if not cpr_wins:
        remarks.insert(0, _by_the_papers_rule(table, found))
    if not holds:
        remarks += [_base_networks(results), SCALE]
    chance = sum(not one.decided for one in found)
    lacking = sum(name not in table for name in (*CPR, *BASELINES))
    limits = [
        f"within sampling error for {chance} of {len(found)} losses" * bool(chance),
        f"{lacking} of {len(CPR + BASELINES)} methods missing" * bool(lacking),
        *_short(table.values()),
    ]
    return Verdict(
        claim=claim,
        paper=cited,
        verdict=decide(holds),
        measured=tuple(map(str, found)),
        remarks=tuple(filter(None, remarks)),
        limits=tuple(filter(None, limits)),
    )


def _by_the_papers_rule(table: dict[str, Result], duels: Sequence[Duel]) -> str:
    """The same comparison with the curve integrated as the paper does."""
    texts = []
    for one in duels:
        ours, theirs = (
            table[name].curve.total_robust_loss(one.loss, rule="trapezoid")
            for name in (one.cpr, one.baseline)
        )
        name = loss_text(parse_loss(one.loss))
        texts.append(f"{name}: {one.cpr} {ours:.3f}, {one.baseline} {theirs:.3f}")
    return f"Measured: integrated over the paper's values of α, {'; '.join(texts)}."


def _paper_duels(budget: str, losses: Sequence[str]) -> str:
    figures = paper.LOSSES[budget]
    texts = []
    for loss in losses:
        ours = min(CPR, key=lambda name: figures[name][loss])
        theirs = min(BASELINES, key=lambda name: figures[name][loss])
        texts.append(
            f"{loss_text(parse_loss(loss))}: {ours} {figures[ours][loss]:.3f}, "
            f"{theirs} {figures[theirs][loss]:.3f}"
        )
    return "; ".join(texts)


def _lacking(table: dict[str, Result]) -> str:
    lacking = [name for name in (*CPR, *BASELINES) if name not in table]
    return f"Without a result, and so not in the comparison: {', '.join(lacking)}." * bool(lacking)


def _undecided(duels: Sequence[Duel]) -> str:
    names = [loss_text(parse_loss(one.loss)) for one in duels if not one.decided]
    if not names:
        return ""
    return (
        f"Measured: the interval of the difference includes zero for {', '.join(names)}, so that "
        "this number of images does not decide there."
    )


def _short(used: Iterable[Result]) -> tuple[str, ...]:
    return ("quick budget",) if _first_look(used) else ()


def _first_look(used: Iterable[Result]) -> str:
    if all(result.plan != "quick" for result in used):
        return ""
    return (
        "Measured: the budget was `quick`, a first look; a larger one can only raise losses, and "
        "not necessarily by the same amount for each method."
    )


def _base_networks(results: Results) -> str:
    """How the networks without rejection compare with the paper's, where that was measured."""
    texts = []
    for method in ("AT", "TRADES"):
        for budget in (SEEN, UNSEEN):
            result = results.table(budget).get(method)
            if result is not None:
                ours = 100 * robust_accuracy_with_detection(result.curve.records)
                theirs = paper.TRADITIONAL[method][budget]
                texts.append(f"{method} {ours:.1f} % {budget} (paper {theirs:.2f} %)")
    if not texts:
        return ""
    return f"Measured: without rejection and under AutoAttack the networks keep {', '.join(texts)}."


def ccat_rejects_nearby(results: Results) -> Verdict:
    """CCAT's answer close to clean images."""
    within, share = paper.CCAT_REJECTED_WITHIN, paper.CCAT_REJECTED_SHARE
    claim = (
        f"CCAT can be made to reject an input within {within:g} of {100 * share:.1f} % of the "
        f"images at ε = {paper.EPS[UNSEEN]:g}"
    )
    cited = f"{100 * share:.2f} %, in the introduction"
    result = results.table(UNSEEN).get("CCAT")
    if result is None:
        return not_measured(claim, cited, "CCAT has no result at this ε.")
    count = int((result.curve.radii <= within).sum())
    interval = clopper_pearson(count, result.images)
    holds = interval.high >= share
    measured = (
        f"{percent_of(count, result.images)} of the images, 95 % interval "
        f"{100 * interval.low:.1f} to {100 * interval.high:.1f} %; the verdict asks whether the "
        "interval reaches the paper's share"
    )
    return Verdict(
        claim=claim,
        paper=cited,
        verdict=decide(holds),
        measured=(measured,),
        remarks=tuple(filter(None, [_first_look([result]), "" if holds else SCALE])),
        limits=_short([result]),
    )


def rcd_never_rejects(results: Results) -> Verdict:
    """RCD's reject class."""
    claim = "RCD never rejects"
    rate = paper.TRADITIONAL["RCD"]["rejection_rate"]
    flat = paper.LOSSES[SEEN]["RCD"]
    cited = (
        f"{rate:.2f} % of clean inputs rejected, and the same loss of {flat['step:0']:.3f} for "
        "every rejection loss under seen attacks"
    )
    found = [results.table(budget).get("RCD") for budget in (SEEN, UNSEEN)]
    present = [result for result in found if result is not None]
    if not present:
        return not_measured(claim, cited, "RCD has no result.")
    measured, never = [], True
    for result in present:
        clean = int((result.curve.records.clean_label == -1).sum())
        forced = int(result.curve.radii.isfinite().sum())
        never = never and forced == 0
        measured.append(
            f"ε = {result.curve.eps:g}: {percent_of(clean, result.images)} rejected when clean, "
            f"and a rejected input found within ε for {percent_of(forced, result.images)}"
        )
    remarks = [] if never else ["Measured: the attack RCDIA looks for rejections by itself.", SCALE]
    return Verdict(
        claim=claim,
        paper=cited,
        verdict=decide(never),
        measured=tuple(measured),
        remarks=tuple(remarks),
        limits=_short(present),
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
    values = [row[size].curve.accuracy_at(alpha) for size in sorted(row)]
    steps = [b - a for a, b in pairwise(values)]
    sign = 1 if rising else -1
    monotone = all(sign * step >= 0 for step in steps)
    total = sign * (values[-1] - values[0])
    measured = "; ".join(
        f"radius {size:g}: {100 * value:.1f} %"
        for size, value in zip(sorted(row), values, strict=True)
    )
    some = next(iter(row.values()))
    remarks = [_first_look([some])]
    if not (monotone and total > 0):
        remarks += [_clean_rejections(row) if rising else "", SCALE]
    return Verdict(
        claim=claim,
        paper=cited,
        verdict=decide(monotone and total > 0),
        measured=(f"m = {paper.STEPS}, n = {some.images}: {measured}",),
        remarks=tuple(filter(None, remarks)),
        limits=_short([some]),
    )


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
    found = results.of("attacks")
    measured, verdicts, tied = [], [], False
    for result in found:
        rows = {r["attack"]: r for r in result.details["ablation"] or [] if r["alpha"] == 0.0}
        if "CHCMOA" not in rows or len(rows) < 2:
            continue
        best = min(row["robustness"] for row in rows.values())
        verdicts.append(rows["CHCMOA"]["robustness"] == best)
        tied = tied or sum(row["robustness"] == best for row in rows.values()) > 1
        listed = ", ".join(f"{name} {100 * row['robustness']:.1f} %" for name, row in rows.items())
        measured.append(f"{result.method}, n = {result.images}: {listed}")
    if not verdicts:
        return not_measured(claim, cited, "The stage of single attacks has no result.")
    remark = "Measured: the smallest robustness is shared by several attacks." if tied else ""
    return Verdict(
        claim=claim,
        paper=cited,
        verdict=decide(all(verdicts)),
        measured=tuple(measured),
        remarks=tuple(filter(None, [remark, "" if all(verdicts) else SCALE])),
        limits=("tied",) * tied,
    )


def stronger_on_ccat(results: Results) -> Verdict:
    """HCMOA against CCAT's own attack."""
    claim = "HCMOA breaks CCAT more often than PGD with backtracking does"
    cited = "; ".join(
        f"{name} leaves {row[SEEN]:.2f} % seen and {row[UNSEEN]:.2f} % unseen"
        for name, row in paper.CCAT.items()
    )
    measured, verdicts = [], []
    for eps in paper.EPS.values():
        left = {
            str(r.study["attack"]): robust_accuracy_with_detection(r.curve.records)
            for r in results.of("ccat")
            if abs(r.curve.eps - eps) < 1e-6
        }
        if len(left) == 2:
            verdicts.append(left["HCMOA"] < left["PGD-backtracking"])
            listed = ", ".join(f"{name} {100 * share:.1f} %" for name, share in left.items())
            measured.append(f"ε = {eps:g}: {listed}")
    if not verdicts:
        return not_measured(claim, cited, "The CCAT stage has no result.")
    return Verdict(
        claim=claim,
        paper=cited,
        verdict=decide(all(verdicts)),
        measured=tuple(measured),
        remarks=() if all(verdicts) else (SCALE,),
    )


def rejection_helps(results: Results) -> Verdict:
    """The same network with CPR and without rejection."""
    claim = "At α = 0 a network with CPR is more robust than the same network without rejection"
    figures = paper.TRADITIONAL
    cited = "; ".join(
        f"{base}: {figures[f'{base}+CPR'][budget]:.2f} % against {figures[base][budget]:.2f} % "
        f"{budget}"
        for base in ("AT", "TRADES")
        for budget in (SEEN, UNSEEN)
    )
    measured, verdicts = [], []
    for budget in (SEEN, UNSEEN):
        table = results.table(budget)
        for base in ("AT", "TRADES"):
            if base in table and f"{base}+CPR" in table:
                plain, cpr = table[base].curve, table[f"{base}+CPR"].curve
                verdicts.append(cpr.accuracy_at(0.0) > plain.accuracy_at(0.0))
                measured.append(
                    f"{base}, ε = {plain.eps:g}: {100 * cpr.accuracy_at(0.0):.1f} % with CPR, "
                    f"{100 * plain.accuracy_at(0.0):.1f} % without (n = {len(cpr.records)})"
                )
    if not verdicts:
        return not_measured(claim, cited, "No network has results with and without CPR.")
    return Verdict(
        claim=claim, paper=cited, verdict=decide(all(verdicts)), measured=tuple(measured)
    )


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
)
