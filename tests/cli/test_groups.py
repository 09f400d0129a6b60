"""Shared options are declared once and arrive together."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import typer
from typer.testing import CliRunner

from cpr_wrap.cli.options import flattened, option, required


@dataclass(frozen=True, kw_only=True)
class Size:
    panel = "Size"
    width: int = required("How wide.")
    height: int = option("How high.", default=2)


def test_a_group_is_spread_out_and_put_together_again():
    seen = []

    def draw(name: str, *, size: Size, color: str = option("Of the line.", default="red")) -> None:
        seen.append((name, size, color))

    flat = flattened(draw)
    assert list(inspect.signature(flat).parameters) == ["name", "width", "height", "color"]
    flat(name="box", width=1, height=2, color="blue")
    assert seen == [("box", Size(width=1, height=2), "blue")]


def test_typer_understands_it():
    seen = []

    def draw(name: str, *, size: Size) -> None:
        """Draw a box."""
        seen.append((name, size))

    app = typer.Typer()
    app.command()(flattened(draw))
    assert CliRunner().invoke(app, ["box", "--width", "7"]).exit_code == 0
    assert seen == [("box", Size(width=7, height=2))]
    assert CliRunner().invoke(app, ["box"]).exit_code == 2  # a field without default is required
    answer = CliRunner().invoke(app, ["--help"])
    assert "Draw a box." in answer.output
    assert "How wide." in answer.output
