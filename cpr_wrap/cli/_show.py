"""What commands print for people: tables and sentences."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import typer

from cpr_wrap._text import duration as duration
from cpr_wrap._text import percent as percent
from cpr_wrap.calibration import CalibrationRecord
from cpr_wrap.metrics import RobustnessCurve
from cpr_wrap.metrics.certificate import Certificate
from cpr_wrap.report import curve_values, losses, with_bars
from cpr_wrap.rule import rule_config


def print_curve(found: RobustnessCurve) -> None:
    """Print a curve as a table with bars, and its total losses."""
    table = curve_values(found)
    for each in (with_bars(table), losses(found)):
        typer.echo(replace(each, caption="").render("text") + "\n")
    width = max(40, min(100, shutil.get_terminal_size((80, 24)).columns))
    typer.echo(textwrap.fill(table.caption, width) + "\n")


def certificate_lines(found: Certificate) -> list[str]:
    """What is proven: certified robustness at each alpha, and bounds of the losses."""
    facts = found.summary()
    rows = {f"alpha {alpha}": percent(share) for alpha, share in facts["accuracy_at"].items()}
    bounds = {k: f"at most {percent(v)}" for k, v in facts["total_robust_loss"].items()}
    return [
        *listed("certified robustness", rows),
        *listed("certified total robust loss", bounds),
        certificate_sentence(found),
    ]


def certificate_sentence(found: Certificate) -> str:
    """What is proven about the network alone, and how long the proofs took."""
    share = float((found.radius >= found.eps).double().mean())
    return (
        f"the network alone is proven right within eps on {percent(share)} of {len(found)} "
        f"images; the proofs took {duration(found.seconds)}"
    )


def calibration_sentence(record: CalibrationRecord) -> str:
    """How a rule was set, and what it rejects, in a few lines."""
    lines = (
        f"before: {record.before.describe()}",
        f"after:  {record.after.describe()}",
        f"rejects {record.num_rejected} of {record.num_correct} correctly classified images, "
        f"{percent(record.measured_rate)} (requested: {100 * record.reject_rate:.3g}%; on new "
        f"images {percent(record.interval.low)} to {percent(record.interval.high)}), and "
        f"{percent(record.overall_rate)} of all {record.num_images}",
        *([f"note: {record.note}"] if record.note else []),
    )
    return "\n".join(lines)


def calibration_facts(record: CalibrationRecord) -> dict[str, Any]:
    """How a rule was set, as plain data."""
    rules = {"before": rule_config(record.before), "after": rule_config(record.after)}
    return {**vars(record), **rules}


def first_line(thing: object) -> str:
    """The first line of a docstring."""
    return (thing.__doc__ or "").strip().split("\n")[0]


def listed(title: str, entries: Mapping[str, str]) -> list[str]:
    """A title and names with what they are, one per line."""
    width = max(map(len, entries), default=0)
    lines = [f"  {name.ljust(width)}  {text}".rstrip() for name, text in entries.items()]
    return [f"{title}:", *lines]
