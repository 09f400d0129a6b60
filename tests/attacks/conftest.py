from __future__ import annotations

import sys

import pytest


@pytest.fixture
def from_git(monkeypatch):
    """The package `autoattack` in the place of an installed one."""
    from tests.attacks.making import FromGit

    package = FromGit()
    monkeypatch.setitem(sys.modules, "autoattack", package)
    return package
