"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib

import pytest

from .test_layers import PACKAGE, files

MODULES = [
    ".".join(("cpr_wrap", *path.relative_to(PACKAGE).with_suffix("").parts))
    for path in files()
    if ">>> " in path.read_text()
]


def test_there_are_examples():
    assert {"cpr_wrap._registry", "cpr_wrap.meter", "cpr_wrap.rules.cpr"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name):
    module = importlib.import_module(name.removesuffix(".__init__"))
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_every_public_name_has_an_example():
    """Constants and registries show their content instead, and `calibrate` shows `Calibration`."""
    import cpr_wrap

    missing = {
        name
        for name in cpr_wrap.__all__
        if callable(thing := getattr(cpr_wrap, name)) and ">>> " not in (thing.__doc__ or "")
    }
    assert missing == {"Calibration"}
