"""Fill the measured tables of the documentation from examples/results.

    python -m examples.tables

Everything between `<!-- table: NAME -->` and `<!-- table: end -->` is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from examples.benchmark import ingredients, outsider, strength, variants

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "examples" / "results"
PAGES = ("choosing-a-radius.md", "evaluation-protocol.md")
TABLES: dict[str, Callable[[], str]] = {
    "variants": partial(variants.table, RESULTS / "variants"),
    "outside": partial(strength.table, RESULTS / "strength", "outside"),
    "former": partial(strength.table, RESULTS / "strength", "former"),
    "outsider": partial(outsider.table, RESULTS / "outsider"),
    "seed": partial(strength.table, RESULTS / "strength", "seed"),
    "pool": partial(strength.table, RESULTS / "strength", "pool"),
    "ingredients": partial(ingredients.table, RESULTS / "ingredients"),
}
_BLOCK = re.compile(r"(<!-- table: ([a-z]+) -->\n)(.*?)(<!-- table: end -->)", re.DOTALL)


def filled(text: str) -> str:
    """A page with every table made anew."""
    return _BLOCK.sub(lambda m: f"{m[1]}\n{TABLES[m[2]]()}\n\n{m[4]}", text)


def main() -> None:
    for name in PAGES:
        page = ROOT / "docs" / name
        page.write_text(filled(page.read_text()))


if __name__ == "__main__":
    main()
