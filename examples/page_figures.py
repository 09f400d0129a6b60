"""Draw the figures of the guide by running the code of its pages.

`python examples/page_figures.py` does it. The blocks of a page run in an empty folder; the SVG
files that they write go to `docs/img`.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import matplotlib as mpl

DOCS = Path(__file__).parent.parent / "docs"
PAGES = ("first-curve.md", "reading-a-curve.md")


def main() -> None:
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "cpr-wrap", "figure.figsize": (7, 3.8)})
    mpl.rcParams["figure.constrained_layout.use"] = True  # nothing is cut off
    for page in PAGES:
        text = (DOCS / page).read_text()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            names: dict[str, object] = {"__name__": "page"}
            for code in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
                exec(compile(code, page, "exec"), names)
            for figure in Path(folder).glob("*.svg"):
                shutil.copy(figure, DOCS / "img" / figure.name)
            os.chdir(DOCS)


if __name__ == "__main__":
    main()
