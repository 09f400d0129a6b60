"""What commands print: tables and sentences for people, JSON for machines."""

from __future__ import annotations

import enum
import json
import math
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from cpr_wrap.metrics import RobustnessCurve
    from cpr_wrap.selective import RejectionRule


def print_json(data: Any) -> None:
    """Print data as JSON on standard output."""
    typer.echo(json.dumps(plain(data), indent=2, allow_nan=False))


def plain(value: Any) -> Any:
    """Make lists, dictionaries and numbers of what commands have; None of NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Sequence):
        return [plain(entry) for entry in value]
    if is_dataclass(value):
        name = getattr(value, "name", None)  # rules keep theirs on the class
        named = {"name": name} if isinstance(name, str) else {}
        return named | {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"expected something JSON can say, got {type(value).__name__}")


def percent(share: float | None) -> str:
    """A share as text, a dash where there is none."""
    return "–" if share is None or math.isnan(share) else f"{100 * share:.1f}%"


def duration(seconds: float) -> str:
    """A time as text, e.g. `4 min 05 s`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def describe_rule(rule: RejectionRule) -> str:
    """A rule and its settings in one phrase, e.g. `cpr (radius 0.1, steps 20, …)`."""
    from cpr_wrap.selective import rule_config

    config = rule_config(rule)
    name = config.pop("name")
    if not rule.can_reject:
        return f"{name} (accepts everything)"
    if rule.needs_gradient:
        config.pop("threshold")  # CPR accepts from 0 on, whatever its settings
    if config.get("keep") == "last":
        config.pop("keep")
    text = [
        f"{key.replace('_', ' ')} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in config.items()
    ]
    return f"{name} ({', '.join(text)})"


def print_curve(found: RobustnessCurve) -> None:
    """Print a curve as a table and as a drawing, with its total losses."""
    from cpr_wrap.report import curve_values, losses

    table = curve_values(found)
    typer.echo(replace(table, caption="").render("text"))
    typer.echo()
    draw([found])
    typer.echo()
    typer.echo(replace(losses(found), caption="").render("text"))
    typer.echo()
    typer.echo(textwrap.fill(table.caption, _width()) + "\n")


def draw(curves: Sequence[RobustnessCurve], names: Sequence[str] | None = None) -> None:
    """Draw curves in the terminal, with what its encoding has."""
    from cpr_wrap.report import draw_terminal, draws_braille

    plain_text = not draws_braille(sys.stdout.encoding)
    lines = draw_terminal(curves, names, width=_width(), ascii=plain_text)
    typer.echo(lines)


def _width() -> int:
    return max(40, min(100, shutil.get_terminal_size((80, 24)).columns))


def clean_sentence(found: RobustnessCurve) -> str:
    """The usual figures on clean images, in two lines."""
    from cpr_wrap.metrics import clean_metrics

    figures = clean_metrics(found.records)
    return (
        f"clean images: {percent(figures.accuracy_with_rejection)} of the accepted are right, "
        f"{percent(figures.rejection_rate)} are rejected\n"
        "right when clean, and never accepted with a mistake within eps: "
        f"{percent(figures.robust_accuracy_with_detection)}"
    )


def cost_sentence(found: RobustnessCurve) -> str:
    """What an evaluation took in one line."""
    details = found.details
    per_image = details["passes_total"]["per_image"]
    return f"{per_image:,.0f} passes an image, {duration(details['seconds'])} in all"


def print_checks(checks: Sequence[Mapping[str, Any]]) -> None:
    """Print an audit as a checklist."""
    typer.echo("Is the evaluation believable?")
    for check in checks:
        mark = {True: "ok ", False: "NO ", None: "-  "}[check.get("passed")]
        typer.echo(f"  {mark} {check['name']}: {check.get('detail', '')}")


def print_list(title: str, entries: Mapping[str, str]) -> None:
    """Print names with what they are, one a line."""
    width = max(map(len, entries), default=0)
    typer.echo(f"{title}:")
    for name, text in entries.items():
        typer.echo(f"  {name.ljust(width)}  {text}".rstrip())
