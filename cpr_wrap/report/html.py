"""The report: one HTML file that needs nothing else, no network and no model."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from cpr_wrap import __version__
from cpr_wrap.report.markup import Child, Markup, join, tag, verbatim
from cpr_wrap.report.run import Run, RunLike, as_runs, labels
from cpr_wrap.report.run_section import (
    ablation_part,
    attacks_part,
    audit_part,
    clean_part,
    flattened,
    gallery_part,
    part,
    radii_part,
    repeat_part,
    theory_part,
    values_part,
)
from cpr_wrap.report.sections import (
    curves_section,
    leaderboard_section,
    losses_content,
    swatch,
)
from cpr_wrap.report.wording import count_text, eps_text


def write_report(
    runs: RunLike | Sequence[RunLike], out: str | Path, title: str | None = None
) -> Path:
    """Write one self-contained HTML file about one or several runs.

    Args:
        runs: Runs, curves or result folders.
        out: The file to write; a folder gets a `report.html`.
        title: Heading of the report.

    Returns:
        The file.
    """
    page = report_html(runs, title)
    path = Path(out)
    if path.is_dir() or not path.suffix:
        path = path / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def report_html(runs: RunLike | Sequence[RunLike], title: str | None = None) -> str:
    """The report as text; see `write_report`."""
    several = as_runs(runs)
    names = labels(several)
    if title is None:
        title = names[0] if len(several) == 1 else f"{len(several)} selective classifiers"
    body = _one(several[0]) if len(several) == 1 else _many(several, names)
    page = join(
        _head(title),
        tag(
            "body",
            tag("a", "Skip to the curves", href="#curves", class_="skip"),
            _header(title, several),
            tag("main", body),
            tag("footer", f"Made by cpr-wrap {__version__}. This file loads nothing."),
            verbatim(_file("report.js"), "script"),
        ),
    )
    return f'<!DOCTYPE html>\n<html lang="en">{page}</html>\n'


def _file(name: str) -> str:
    return resources.files("cpr_wrap.report").joinpath(name).read_text(encoding="utf-8")


def _head(title: str) -> Markup:
    # Only our own style and script may act, and nothing may be fetched.
    policy = "; ".join(
        [
            "default-src 'none'",
            "img-src data:",
            f"style-src '{_digest('report.css')}'",
            f"script-src '{_digest('report.js')}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        # An empty icon, or the browser would ask the server for one.
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{title} – robustness with rejection"),
        verbatim(_file("report.css"), "style"),
    )


def _digest(name: str) -> str:
    digest = hashlib.sha256(_file(name).encode("utf-8")).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")


def _header(title: str, runs: Sequence[Run]) -> Markup:
    return tag(
        "header",
        tag(
            "div",
            tag("p", "Robustness with rejection", class_="kicker"),
            tag("button", "Dark", type="button", id="theme", aria_pressed="false"),
            class_="bar-top",
        ),
        tag("h1", title),
        tag("p", _subject(runs[0]), class_="subject") if len(runs) == 1 else None,
    )


def _subject(run: Run) -> str:
    records = run.curve.records
    words = [
        " ".join(filter(None, [count_text(len(records)), run.dataset, "images"])),
        f"{records.norm} ε = {eps_text(run.curve.eps)}",
    ]
    if run.rule:
        # CPR accepts from 0 on, whatever its settings: its threshold says nothing.
        keys = _CPR_KEYS if run.rule.get("name") == "cpr" else ("threshold",)
        shown = [f"{k.replace('_', ' ')} {v}" for k, v in flattened(run.rule) if k in keys]
        words.append(f"rule {run.rule.get('name')}" + (f" ({', '.join(shown)})" if shown else ""))
    if run.settings.get("budget"):
        words.append(f"budget {run.settings['budget']}")
    return " · ".join(words)


_CPR_KEYS = ("radius", "steps", "step_size")


def _one(run: Run) -> list[Child]:
    losses = tag("section", tag("h2", "Total robust loss"), losses_content(run), id="losses")
    top = tag("div", curves_section([run], [run.name]), losses, class_="top")
    return [top, tag("article", _parts(run, 0))]


def _many(runs: Sequence[Run], names: Sequence[str]) -> list[Child]:
    articles = []
    for place, (run, name) in enumerate(zip(runs, names, strict=True)):
        losses = part("Total robust loss", losses_content(run), style="total")
        articles.append(
            tag(
                "details",
                tag("summary", swatch(place), tag("span", name)),
                tag("p", _subject(run), class_="subject"),
                tag("article", losses, _parts(run, place)),
                class_="run",
            )
        )
    return [
        curves_section(runs, names),
        leaderboard_section(runs, names),
        tag("section", tag("h2", "Runs"), articles, id="runs"),
    ]


def _parts(run: Run, place: int) -> list[Child]:
    return [
        clean_part(run),
        radii_part(run, place),
        attacks_part(run),
        values_part(run),
        ablation_part(run),
        theory_part(run),
        audit_part(run),
        gallery_part(run),
        repeat_part(run),
    ]
