"""Writes `study.md` from published result folders; no figure in it comes from anywhere else."""

from __future__ import annotations

from pathlib import Path

from cpr_wrap.report.wording import MISSING, UPPER_BOUND
from study import paper, reasons, sections, stage_sections
from study.claims import CLAIMS
from study.read import Results
from study.tables import agreement, markdown, same_order
from study.verdict import Verdict

COMMAND = "python examples/paper_study.py --document --publish docs/study"


def write_document(published: Path) -> Path:
    """Write the document beside the folder of published results."""
    path = published.parent / f"{published.name}.md"
    path.write_text(document(published))
    return path


def document(published: Path) -> str:
    """The document's text."""
    results = Results(published)
    parts = [
        "# The paper's study at CPU size",
        _preface(results),
        *sections.cost(results),
        *_claims(results),
        *_notes(published),
        *sections.main_table(results),
        *sections.check(results),
        *_agreement(results),
        *sections.rejection(results),
        *sections.clean_table(results),
        *sections.calibration(results),
        *stage_sections.rejections(results),
        *stage_sections.ccat(results),
        *stage_sections.attacks(results),
        *stage_sections.radius(results),
        *stage_sections.cifar10(results),
        *sections.audit(results),
        _repeat(),
    ]
    return "\n\n".join(parts) + "\n"


def _preface(results: Results) -> str:
    counts = sorted({r.images for r in results.of("main")})
    attacked = " to ".join(map(str, dict.fromkeys((*counts[:1], *counts[-1:])))) or "no"
    return "\n\n".join(
        [
            "Generated from the result folders in `docs/study` by\n\n"
            f"```\n{COMMAND}\n```\n\nNo result below is typed by hand; a test regenerates this "
            "page and compares it. Only what was looked into, below the claims, is written by "
            "people (`docs/study/notes.md`). The paper's figures are data in "
            "`examples/study/paper.py`, each with the table that it comes from.",
            f"The networks are the bundled compact ones, trained on real MNIST by the paper's "
            f"methods. The main table rests on {attacked} test images, where the paper attacks "
            f"{paper.IMAGES:,}. Seen attacks have the ε of the training, {paper.EPS['seen']:g}; "
            f"unseen ones have {paper.EPS['unseen']:g}. Thresholds reject "
            f"{100 * paper.REJECT_RATE:g} % of the correctly classified validation images; RCD has "
            "no threshold, its reject class wins or loses; CPR has the paper's radius "
            f"{paper.RADIUS:g} and {paper.STEPS} steps of {paper.STEP_SIZE:g}.",
            "Intervals are 95 % intervals over images, not over attacks: exact (Clopper-Pearson) "
            "for shares of images, which step losses are, and bootstrap for ramps. "
            f"{UPPER_BOUND} The budgets `quick` and `standard` are those of "
            "`robustness_curve`; `quick` is a first look.",
        ]
    )


def _claims(results: Results) -> list[str]:
    verdicts = [claim(results) for claim in CLAIMS]
    lines = [[v.claim, f"**{v.verdict}**", ", ".join(v.limits) or MISSING] for v in verdicts]
    parts = ["## The paper's claims", markdown(["Claim", "here", "limits"], lines)]
    parts.append(
        "Every verdict is computed. A claim holds where everything it is about was measured and "
        "every comparison that it makes is beyond chance, and does not hold where one is beyond "
        "chance the other way; else it is undecided, whichever way the figures point. Comparisons "
        "are made image by image, over the images that all methods compared have. In brackets: how "
        "many errors only the first and only the second has, with p of an exact sign test; for "
        "ramps p of the same test with differences of any size, their signs drawn at random. The "
        "best of each side is picked on the same images, which neither takes into account."
    )
    return [*parts, *map(_explained, verdicts)]


def _explained(verdict: Verdict) -> str:
    parts = [f"**{verdict.claim}:** {verdict.verdict}."]
    if verdict.lines:
        parts.append(markdown(list(verdict.head), list(verdict.lines)))
    lines = [f"- Paper: {verdict.paper}."] if verdict.paper else []
    lines += [f"- Here: {text.rstrip('.')}." for text in verdict.measured]
    lines += [f"- {text}" for text in verdict.remarks]
    if lines:
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _notes(published: Path) -> list[str]:
    """What was looked into where a claim fails or a figure is far off, written by people."""
    file = published / "notes.md"
    if not file.exists():
        return []
    return ["### What was looked into", file.read_text().strip()]


def _agreement(results: Results) -> list[str]:
    parts = ["## Where our figures and the paper's agree"]
    if not results.of("main"):
        return [*parts, sections.NO_RESULT]
    parts.append(
        "For each method, how many of the paper's ten total robust losses lie within our 95 % "
        "interval, and the loss that differs most (ours minus the paper's). Networks, trainings "
        "and attacks differ, so that agreement within sampling error is not to be expected; the "
        "order of methods is."
    )
    parts.append(agreement(results))
    texts = []
    for budget in paper.EPS:
        agreed, total = same_order(results, budget)
        if total:
            texts.append(f"{agreed} of {total} under {budget} attacks")
    if texts:
        parts.append(
            "Two methods come in the paper's order, of all pairs and losses in which it has one "
            f"(equals here count as not in its order): {', '.join(texts)}."
        )
    if likely := reasons.likely(results):
        parts.append("Likely reasons for differences:")
        parts.append("\n".join(f"- {text}" for text in [*likely, reasons.SCALE]))
    return parts


def _repeat() -> str:
    return (
        "## To repeat or continue\n\n"
        "```\npython examples/paper_study.py --budget standard --images 500 --out runs/study "
        "--publish docs/study\n```\n\n"
        "Every stage stands alone (`--only main,ccat,…`), and what is finished is not done again. "
        "Set `CPR_WRAP_DATA` to a folder with the whole data sets. SVHN has a loader and recipes, "
        "and no table: too few of its test images were at hand."
    )
