"""What importing costs, measured in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import cpr_wrap

NEIGHBOURS = {
    "autoattack",
    "foolbox",
    "matplotlib",
    "pandas",
    "pyautoattack",
    "robustbench",
    "timm",
    "torchvision",
}
REPORT = (
    "\nimport json, sys; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
)


def imported_by(code: str) -> set[str]:
    """Top-level packages in memory after running code in a fresh interpreter."""
    run = subprocess.run(
        [sys.executable, "-c", code + REPORT],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent.parent,
    )
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout.splitlines()[-1]))


def test_importing_the_package_imports_next_to_nothing():
    assert not imported_by("import cpr_wrap") & (NEIGHBOURS | {"torch", "numpy"})


@pytest.mark.integration
def test_no_public_name_needs_the_slow_neighbours():
    # The registry first, because it must be full before anything else has imported the rules.
    code = """
import cpr_wrap
assert {"cpr", "rcd"} <= set(cpr_wrap.RULES)
for name in cpr_wrap.__all__:
    getattr(cpr_wrap, name)
"""
    modules = imported_by(code)
    assert "torch" in modules
    assert not modules & NEIGHBOURS


def test_help_does_not_import_torch():
    code = """
import sys
sys.argv = ["cpr-wrap", "--help"]
from cpr_wrap.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
"""
    assert not imported_by(code) & (NEIGHBOURS | {"torch"})


def test_every_public_name_exists_and_is_listed():
    assert len(set(cpr_wrap.__all__)) == len(cpr_wrap.__all__)
    for name in cpr_wrap.__all__:
        assert getattr(cpr_wrap, name) is not None
    assert set(cpr_wrap.__all__) <= set(dir(cpr_wrap))


def test_public_names_are_what_their_modules_define():
    from cpr_wrap.rules.cpr import CPRWrapper
    from cpr_wrap.selective import REJECT

    assert cpr_wrap.CPRWrapper is CPRWrapper
    assert cpr_wrap.REJECT is REJECT


def test_an_unknown_name_is_named():
    with pytest.raises(AttributeError, match="module 'cpr_wrap' has no attribute 'Wrapper'"):
        _ = cpr_wrap.Wrapper
