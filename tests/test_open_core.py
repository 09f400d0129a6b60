"""The core knows no rule: what it needs, a rule declares."""

from __future__ import annotations

import ast
from dataclasses import fields
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
ODD_NAMES = {"cpr", "rcd", "atrr"}  # nothing else is called so
CLASSES = {kind.__name__ for kind in RULES.values()} | {"CPRWrapper"}
FIELDS = {field.name for kind in RULES.values() for field in fields(kind)}


def _mentioned(node: ast.AST) -> set[str]:
    """Names and attributes in a piece of code."""
    parts = list(ast.walk(node))
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    return names | {part.attr for part in parts if isinstance(part, ast.Attribute)}


def _texts(node: ast.AST) -> set[str]:
    return {
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }


def _is_breach(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        if called in ("isinstance", "issubclass"):
            return bool(_mentioned(node) & CLASSES)
        constant = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
        if called in ("getattr", "hasattr") and constant:
            of_rule = ast.unparse(node.args[0]).split(".")[-1] == "rule"
            return of_rule or node.args[1].value in FIELDS
        # "cpr".startswith, {"cpr": ...}.get(rule.name)
        return bool(_texts(node.func) & NAMES)
    if isinstance(node, ast.Compare):
        texts, mentioned = _texts(node), _mentioned(node)
        named = texts & ODD_NAMES or (texts & NAMES and "rule" in ast.unparse(node))
        return bool(named or ("type" in mentioned and mentioned & CLASSES))
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict):
        return bool(_texts(node.value) & NAMES)
    if isinstance(node, ast.Match):
        patterns = [case.pattern for case in node.cases]
        return any(_texts(each) & NAMES or _mentioned(each) & CLASSES for each in patterns)
    return False


def breaches(source: str) -> list[str]:
    """Where code treats one rule unlike others."""
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(source))
        if _is_breach(node)
    ]


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
        "isinstance(model.rule, rules.Consistency)",
        "isinstance(r, Confidence | AcceptAll)",
        "type(rule) is Consistency",
        "type(model.rule) in (rules.Confidence, rules.AcceptAll)",
        "getattr(r, 'radius', 0.0)",
        "kind == 'rcd'",
        "{'cpr': 1, 'none': 0}[kind]",
        "{'cpr': 1, 'none': 0}.get(kind)",
        "match rule:\n    case Consistency(): pass",
        "match rule.name:\n    case 'verified': pass",
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
