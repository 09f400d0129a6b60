"""Execute the notebook of the documentation and store its output in place.

`python examples/run_notebook.py` needs the extra `docs`. Times and paths are left out, so that the
file changes only if its output does.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent.parent / "docs" / "wrap-a-model.ipynb"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=NOTEBOOK, help="where to write the result")
    out = parser.parse_args().out
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=1200, record_timing=False).execute()
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, out)


if __name__ == "__main__":
    main()
