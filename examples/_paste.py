"""Puts what a script measured into README, so that nobody types numbers by hand."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent


def paste(name: str, text: str, file: Path = ROOT / "README.md") -> None:
    """Replace what stands between `<!-- NAME: begin … -->` and `<!-- NAME: end -->`.

    Args:
        name: Name of the pair of markers.
        text: What to put between them.
        file: The Markdown file that has them.
    """
    old = file.read_text()
    begin, end = old.find(f"<!-- {name}: begin"), old.find(f"<!-- {name}: end -->")
    if begin < 0 or end < begin:
        raise LookupError(
            f"{file} has no markers <!-- {name}: begin … --> and <!-- {name}: end -->"
        )
    first = old.index("-->", begin) + len("-->")
    file.write_text(f"{old[:first]}\n{text.strip()}\n{old[end:]}")
