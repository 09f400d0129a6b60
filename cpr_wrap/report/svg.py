"""Axes and lines in SVG; colours and type come from the page's style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cpr_wrap.report.markup import Child, Markup, tag


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A plot's place in its picture, and the ranges it shows.

    Text in a picture shrinks with it, so every chart comes in two sizes: one for a desk and one for
    a phone.

    Attributes:
        width: Of the whole picture, in SVG units; one is about one pixel on the screen.
        height: Of the whole picture.
        top: Largest value of the vertical axis, which begins at 0.
        ticks: Numbers of the horizontal axis, which runs from 0 to 1.
        left: Room for the vertical axis.
        above: Room for what stands over the plot.
        below: Room for the horizontal axis.
        right: Room beside the plot.
        kind: Style of the picture, `wide` or `narrow`.
    """

    width: int
    height: int
    top: float = 1.0
    ticks: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    left: int = 60
    above: int = 12
    below: int = 46
    right: int = 14
    kind: str = "wide"

    def x(self, share: float) -> float:
        """Horizontal place of a number in [0, 1]."""
        return round(self.left + share * (self.width - self.left - self.right), 2)

    def y(self, value: float) -> float:
        """Vertical place of a number in [0, top]."""
        room = self.height - self.above - self.below
        return round(self.above + (1 - value / self.top) * room, 2)


def picture(frame: Frame, description: str, *children: Child) -> Markup:
    """The whole picture, with a description for those who cannot see it."""
    return tag(
        "svg",
        tag("title", description),
        children,
        viewBox=f"0 0 {frame.width} {frame.height}",
        role="img",
        aria_label=description,
        class_=f"chart {frame.kind}",
        data_left=frame.x(0),
        data_right=frame.x(1),
    )


def axes(
    frame: Frame, *, x_title: str, y_title: str, y_ticks: Sequence[tuple[float, str]]
) -> Markup:
    """Both axes with grid lines, numbers and titles."""
    left, right, bottom = frame.x(0), frame.x(1), frame.y(0)
    parts = []
    for value, text in y_ticks:
        y = frame.y(value)
        parts.append(_line("grid" if value else "axis", left, y, right, y))
        parts.append(_label(text, left - 8, y + 4, "end"))
    for share in frame.ticks:
        x = frame.x(share)
        parts.append(_line("axis", x, bottom, x, bottom + 4))
        parts.append(_label(f"{share:g}", x, bottom + 18, "middle"))
    middle = (left + right) / 2
    parts.append(_label(x_title, middle, frame.height - 8, "middle", "axis-title"))
    height = (frame.y(0) + frame.y(frame.top)) / 2
    parts.append(
        tag(
            "text",
            y_title,
            class_="axis-title",
            text_anchor="middle",
            transform=f"translate(14 {height:.6g}) rotate(-90)",
        )
    )
    return tag("g", parts)


def _line(style: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return tag("line", class_=style, x1=x1, y1=y1, x2=x2, y2=y2)


def _label(text: str, x: float, y: float, anchor: str, style: str = "tick") -> Markup:
    return tag("text", text, class_=style, x=float(x), y=float(y), text_anchor=anchor)


def step_path(frame: Frame, xs: Sequence[float], ys: Sequence[float]) -> str:
    """A function that keeps each value up to the next place, from xs[0] to xs[-1]."""
    pieces = [f"M{frame.x(xs[0]):g} {frame.y(ys[0]):g}"]
    for x, before, y in zip(xs[1:], ys[:-1], ys[1:], strict=True):
        pieces.append(f"H{frame.x(x):g}")
        if y != before:
            pieces.append(f"V{frame.y(y):g}")
    return "".join(pieces)


def area_path(
    frame: Frame, xs: Sequence[float], low: Sequence[float], high: Sequence[float]
) -> str:
    """The area between two functions, joined by straight lines."""
    forth = [f"{frame.x(x):g} {frame.y(y):g}" for x, y in zip(xs, high, strict=True)]
    back = [f"{frame.x(x):g} {frame.y(y):g}" for x, y in zip(xs, low, strict=True)]
    return "M" + "L".join([*forth, *reversed(back)]) + "Z"
