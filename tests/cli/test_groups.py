"""Shared options are declared once and arrive together."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import typer
from typer.testing import CliRunner

from cpr_wrap.cli.options import argument, option, required, spread


@dataclass(frozen=True, kw_only=True)
class Size:
    panel = "Size"
    width: int = required("How wide.")
    height: int = option("How high.", default=2)


@dataclass(frozen=True, kw_only=True)
class Draw(Size):
    name: str = argument("What.")
    color: str = option("Of the line.", default="red")


def test_options_are_spread_out_and_put_together_again():
    seen = []
    flat = spread(Draw, seen.append)
    assert list(inspect.signature(flat).parameters) == ["width", "height", "name", "color"]
    flat(name="box", width=1, height=2, color="blue")
    assert seen == [Draw(name="box", width=1, height=2, color="blue")]


def test_typer_understands_it():
    seen = []
    app = typer.Typer()
    app.command(help="Draw a box.")(spread(Draw, seen.append))
    assert CliRunner().invoke(app, ["box", "--width", "7"]).exit_code == 0
    assert seen == [Draw(name="box", width=7, height=2, color="red")]
    assert CliRunner().invoke(app, ["box"]).exit_code == 2  # a field without default is required
    answer = CliRunner().invoke(app, ["--help"])
    assert "Draw a box." in answer.output
    assert "How wide." in answer.output
    own, shared = answer.output.index("Of the line."), answer.output.index("How wide.")
    assert own < answer.output.index("─ Size ─") < shared
