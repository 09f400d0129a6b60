"""What a report says about one run: clean figures, attacks, radii, pictures, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from cpr_wrap.metrics import clean_metrics
from cpr_wrap.report.charts import radius_chart, radius_counts
from cpr_wrap.report.gallery import Exhibit, Gallery, make_gallery
from cpr_wrap.report.markup import Child, Markup, tag
from cpr_wrap.report.png import data_uri
from cpr_wrap.report.run import Run
from cpr_wrap.report.sections import html_table
from cpr_wrap.report.table import Cell, Column, Table
from cpr_wrap.report.tables import curve_values
from cpr_wrap.report.wording import MISSING, count_text, eps_text, percent, seconds_text

_CLEAN_TITLES = {
    "accuracy_with_rejection": "accuracy with rejection",
    "rejection_rate": "rejection rate",
    "f1_like": "F1-like",
    "robust_accuracy_with_detection": "robust accuracy with detection",
}


def part(title: str, *children: Child, style: str) -> Markup:
    """A section of a run."""
    return tag("section", tag("h3", title), children, class_=style)


def clean_part(run: Run) -> Markup:
    """Figures of the clean images, those attacked and, where known, the whole test set."""
    groups: list[tuple[str, int | None, dict[str, Any]]] = [
        ("attacked", len(run.curve.records), clean_metrics(run.curve.records).to_dict())
    ]
    tested = run.part("clean_test")
    if tested:
        groups.append(("test set", tested.get("images"), dict(tested)))
    columns = (Column("", words=True), *(Column(name) for name, _, _ in groups))
    counts = [Cell(MISSING if count is None else count_text(count)) for _, count, _ in groups]
    rows = [(Cell("images"), *counts)]
    for key, title in _CLEAN_TITLES.items():
        rows.append((Cell(title), *(Cell(percent(figures.get(key), 2)) for *_, figures in groups)))
    table = Table(columns=columns, rows=tuple(rows), title="Clean figures")
    return part("Clean inputs", html_table(table), style="clean")


def values_part(run: Run) -> Markup:
    """The curve in numbers."""
    table = curve_values(run.curve)
    bare = Table(columns=table.columns, rows=table.rows, title=table.title)
    return part("Curve in numbers", html_table(bare), style="values")


def attacks_part(run: Run) -> Markup:
    """Which attack found what, and what it cost."""
    records = run.curve.records
    broken, rejected = records.first_broken_by(), records.first_rejected_by()
    # An attack may have several stages; their costs add up under its name.
    costs: dict[str, dict[str, float]] = {}
    for row in run.rows("passes"):
        sums = costs.setdefault(str(row.get("attack", "")), {})
        passes = row.get("forwards", 0) + row.get("backwards", 0)
        sums["passes"] = sums.get("passes", 0) + passes
        sums["seconds"] = sums.get("seconds", 0) + row.get("seconds", 0)
    columns: list[Column] = [
        Column("attack", words=True),
        Column("mistakes"),
        Column("nearest rejections"),
    ]
    if costs:
        columns += [Column("passes"), Column("time")]
    rows = []
    for name in dict.fromkeys([*_first("clean", broken, rejected), *costs, *broken, *rejected]):
        cells = [Cell(name), _count(broken.get(name)), _count(rejected.get(name))]
        if costs:
            sums = costs.get(name, {})
            spent = sums.get("seconds")
            time = Cell(MISSING if spent is None else seconds_text(spent), spent)
            cells += [_count(sums.get("passes")), time]
        rows.append(tuple(cells))
    table = Table(columns=tuple(columns), rows=tuple(rows), title="Attacks")
    note = (
        "Mistakes: images whose nearest accepted mistake the attack found. Nearest rejections: "
        "images whose smallest rejected radius it found. Attacks run in this order, and a broken "
        "image leaves, so that a late attack with few findings is not a weak one."
    )
    return part(
        "Attacks",
        html_table(table, style="attacks"),
        tag("p", note, _cost(run), class_="note"),
        style="attacks",
    )


def _first(name: str, *tallies: Mapping[str, int]) -> list[str]:
    return [name] if any(name in tally for tally in tallies) else []


def _count(number: float | None) -> Cell:
    return Cell(MISSING) if number is None else Cell(count_text(number), float(number))


def _cost(run: Run) -> str | None:
    passes = run.passes_per_image
    if passes is None:
        return None
    return f" A pass is one image forwards or backwards; {count_text(passes)} an image in all."


def ablation_part(run: Run) -> Markup | None:
    """What each attack achieves alone."""
    rows = run.rows("ablation")
    if not rows:
        return None
    keys = list(dict.fromkeys(key for row in rows for key in row))
    columns = tuple(
        Column(
            _TITLES.get(key, key.replace("_", " ")),
            words=any(isinstance(row.get(key), str) for row in rows),
        )
        for key in keys
    )
    cells = tuple(tuple(_any_cell(key, row.get(key)) for key in keys) for row in rows)
    table = Table(columns=columns, rows=cells, title="Ablation")
    note = (
        "Each attack alone, on every image: an attack for mistakes by the robustness at α = 0 that "
        "it leaves, one for rejections by that at α = 1, with the mistakes of all attacks given."
    )
    return part("Ablation", html_table(table), tag("p", note, class_="note"), style="ablation")


_TITLES = {"alpha": "α", "passes_per_image": "passes/image"}


def _any_cell(key: str, value: Any) -> Cell:
    if value is None:
        return Cell(MISSING)
    if key == "passes_per_image":
        return _count(value)
    if isinstance(value, float) and key in ("robustness", "error", "accuracy"):
        return Cell(percent(value), value)
    return Cell(_plain(value), float(value) if isinstance(value, int | float) else None)


def radii_part(run: Run, place: int) -> Markup:
    """How near to the images a rejected point was found."""
    counts = radius_counts(run)
    whole = len(run.curve.records) - counts["broken"]
    words = [
        f"{count_text(whole)} images without an accepted mistake; rejected as they are, and not "
        f"drawn: {counts['clean']}; not made to be rejected within ε: {counts['none']}. Left out, "
        "because the search for rejections stops where a mistake is accepted: "
        f"{counts['broken']}."
    ]
    if counts["ideal"] is not None:
        words.append(
            " Line: max(0, distance to the network's boundary − radius), from where on an ideal T "
            f"would reject; at 0: {counts['ideal_clean']}, beyond ε: {counts['ideal_none']}."
        )
    chart = tag("figure", radius_chart(run, place), tag("figcaption", words))
    return part("Smallest rejected radius", chart, style="radii")


def theory_part(run: Run) -> Markup | None:
    """Which theorems apply, and what they take for granted."""
    if run.theorems is None:
        return None
    items = []
    for name, theorem in zip(("Theorem 1", "Theorem 2"), run.theorems, strict=True):
        if not theorem.applicable:
            said = f"does not apply: {theorem.why}."
        elif theorem.unchecked:
            said = f"applies, if these hold: {', '.join(theorem.unchecked)}."
        else:
            said = "applies."
        items.append(tag("li", tag("strong", name), f" {said}"))
    return part("Theory", tag("ul", items), style="theory")


def gallery_part(run: Run) -> Markup | None:
    """Pictures: clean, perturbed, T of it, difference, verdict."""
    gallery = run.gallery or _from_points(run)
    if gallery is None or not len(gallery):
        return None
    classes = run.details.get("classes")
    names = list(classes) if isinstance(classes, Sequence) and not isinstance(classes, str) else []
    figures = [_figure(gallery, place, names, run.curve.eps) for place in range(len(gallery))]
    note = (
        "Up to half are accepted mistakes, the others rejections, each spread evenly from the "
        "nearest to the farthest point found. Differences are amplified to fill the range; grey is "
        "no change."
    )
    return part(
        "Gallery",
        tag("p", note, class_="note"),
        tag("div", figures, class_="gallery"),
        style="pictures",
    )


def _from_points(run: Run) -> Gallery | None:
    clean = (run.points or {}).get("clean")
    if clean is None or clean.dim() != 4 or clean.shape[1] not in (1, 3):
        return None
    return make_gallery(None, run.curve)


def _figure(gallery: Gallery, place: int, names: Sequence[str], eps: float) -> Markup:
    exhibit = gallery.exhibits[place]
    clean, perturbed = gallery.clean[place], gallery.perturbed[place]
    change = perturbed - clean
    largest = float(change.abs().max())
    factor = 0.5 / largest if largest > 0 else 1.0
    pictures: list[tuple[str, Tensor]] = [("clean", clean), ("perturbed", perturbed)]
    if gallery.transformed is not None:
        pictures.append(("T(perturbed)", gallery.transformed[place]))
    pictures.append((f"difference ×{factor:.3g}", 0.5 + factor * change))
    small = max(clean.shape[-2:]) <= 64
    images = [
        tag(
            "div",
            tag(
                "img",
                src=data_uri(image),
                alt=f"image {exhibit.index}, {title}",
                class_="pixels" if small else None,
            ),
            tag("span", title),
        )
        for title, image in pictures
    ]
    return tag(
        "figure",
        tag("div", images, class_="strip"),
        tag("figcaption", _verdict(exhibit, names, eps)),
        class_=f"exhibit {exhibit.kind}",
    )


def _verdict(exhibit: Exhibit, names: Sequence[str], eps: float) -> list[Child]:
    def name(label: int) -> str:
        return str(names[label]) if 0 <= label < len(names) else str(label)

    if exhibit.kind == "mistake":
        wrong = "wrongly" if exhibit.predicted is None else f"as {name(exhibit.predicted)}"
        words = f"Accepted {wrong}"
    else:
        words = "Rejected"
    told = [f"true class {name(exhibit.label)}"]
    if exhibit.kind == "rejection" and exhibit.predicted is not None:
        told.append(f"says {name(exhibit.predicted)}")
    if exhibit.shadow is not None:
        told.append(f"at T {name(exhibit.shadow)}")
    where = f"distance {exhibit.distance:.4g} ({exhibit.distance / eps:.2g}\u00a0ε)"
    told += [where if exhibit.distance else "the clean image itself", exhibit.attack]
    again = None
    if exhibit.holds is False:
        again = tag("strong", " The model gave another verdict when asked again.", class_="failed")
    return [tag("strong", words), f", {', '.join(told)}; image {exhibit.index}.", again]


def _plain(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: MISSING}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_plain(entry) for entry in value)
    return str(value)


def flattened(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Nested settings as pairs of dotted names and texts."""
    if isinstance(value, Mapping):
        return [
            pair
            for key, entry in value.items()
            for pair in flattened(entry, f"{name}.{key}" if name else str(key))
        ]
    if name.rsplit(".", 1)[-1] == "eps" and isinstance(value, float):
        return [(name, eps_text(value))]
    return [(name, _plain(value))]


_STATES = {True: ("passed", "✓"), False: ("failed", "✗"), None: ("no answer", "–")}


def audit_part(run: Run) -> Markup | None:
    """The checklist on whether the evaluation itself is believable."""
    items = []
    for row in run.rows("audit"):
        passed = row.get("passed")
        state, sign = _STATES[passed if isinstance(passed, bool) else None]
        detail = row.get("detail")
        items.append(
            tag(
                "li",
                tag("span", sign, aria_hidden="true", class_="sign"),
                tag("span", tag("strong", state), f": {row.get('name', 'check')}"),
                tag("span", str(detail), class_="detail") if detail else None,
                class_=state.replace(" ", "-"),
            )
        )
    if not items:
        return None
    return part("Audit", tag("ul", items, class_="checks"), style="audit")


def repeat_part(run: Run) -> Markup:
    """How to make the run again: command, settings, versions, digests."""
    pairs: list[tuple[str, str]] = []
    for key in ("model", "dataset", "settings", "calibration", "versions", "digests"):
        if run.details.get(key) is not None:
            value = run.details[key]
            pairs += flattened(value, "" if key == "settings" else key)
    listed = [(tag("dt", name), tag("dd", text)) for name, text in pairs]
    notes = run.details.get("notes")
    lines = list(notes) if isinstance(notes, Sequence) and not isinstance(notes, str) else []
    return part(
        "Reproduction",
        tag("pre", tag("code", run.command), tabindex=0) if run.command else None,
        tag("ul", [tag("li", str(line)) for line in lines], class_="notes") if lines else None,
        tag(
            "details",
            tag("summary", "Settings, versions and digests"),
            tag("dl", listed, class_="settings"),
        )
        if listed
        else tag("p", "The run carries no settings.", class_="note"),
        style="repeat",
    )
