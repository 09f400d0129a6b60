"""The core knows no rule: what it needs, a rule declares."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from cpr_wrap.rules import RULES

PACKAGE = Path(__file__).parent.parent / "cpr_wrap"
CORE = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if path.relative_to(PACKAGE).parts[0] not in ("rules", "bundled")
)
NAMES = {"cpr", "confidence", "rcd", "atrr", "verified", "none"}
CLASSES = {kind.__name__ for kind in RULES.values()} | {"CPRWrapper"}


def breaches(source: str) -> list[str]:
    """Where code treats one rule unlike others."""
    found = []
    for node in ast.walk(ast.parse(source)):
        text = ast.unparse(node) if isinstance(node, ast.Call | ast.Compare) else ""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            if node.func.id in ("isinstance", "issubclass") and names & CLASSES:
                found.append(f"line {node.lineno}: {text}")
            first = ast.unparse(node.args[0]) if node.args else ""
            if node.func.id in ("getattr", "hasattr") and first.split(".")[-1] == "rule":
                constant = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
                found += [f"line {node.lineno}: {text}"] if constant else []
        if isinstance(node, ast.Compare):
            literals = {
                part.value
                for part in ast.walk(node)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            }
            if literals & NAMES and "rule" in text:
                found.append(f"line {node.lineno}: {text}")
    return found


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_rule_is_treated_unlike_others(path):
    assert not breaches(path.read_text())


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(model.rule, Consistency)",
        "isinstance(rule, (int, RejectClass))",
        "getattr(self.model.rule, 'radius', 0.0)",
        "hasattr(rule, 'transform')",
        "rule.name == 'cpr'",
        "config['rule']['name'] in ('confidence', 'atrr')",
        "run.rule.get('name') != 'cpr'",
    ],
)
def test_the_search_finds_what_it_should(source):
    assert breaches(source)


@pytest.mark.parametrize(
    "source",
    ["isinstance(rule, RejectionRule)", "rule.norm == self.norm", "getattr(rule, kind)"],
)
def test_the_search_leaves_the_rest_alone(source):
    assert not breaches(source)


def test_the_default_rule_is_named_once():
    places = [
        path.relative_to(PACKAGE).as_posix()
        for path in CORE
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value == "cpr"
    ]
    assert [place for place in places if not place.startswith(("training/", "cli/demo"))] == [
        "rule.py"
    ]
