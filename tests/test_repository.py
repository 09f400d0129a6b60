"""What people expect of a repository: citation, changelog, issue templates, hooks, workflow."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest

import cpr_wrap

yaml = pytest.importorskip("yaml", reason="needs the extra dev")

ROOT = Path(__file__).parent.parent
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))


def test_the_citation_names_this_version_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    required = {"cff-version", "message", "title", "authors"}  # of the format, version 1.2.0
    assert required <= citation.keys()
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == cpr_wrap.__version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", citation["date-released"])
    (paper,) = citation["references"]
    assert {"type", "title", "authors"} <= paper.keys()
    names = [author["family-names"] for author in paper["authors"]]
    assert names == ["Chen", "Raghuram", "Choi", "Wu", "Liang", "Jha"]


def test_readme_cites_the_same_paper_and_version():
    readme = (ROOT / "README.md").read_text()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    (paper,) = citation["references"]
    assert f"{{{paper['title']}}}" in readme
    assert f"{paper['start']}--{paper['end']}" in readme
    assert f"version = {{{cpr_wrap.__version__}}}" in readme


def test_the_changelog_has_a_section_for_this_version():
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)
    assert sections[:2] == ["Unreleased", cpr_wrap.__version__]
    assert "### Numbers" in text


def commands(template: Path) -> list[str]:
    fields = yaml.safe_load(template.read_text())["body"]
    texts = [field["attributes"].get("value", "") for field in fields]
    return re.findall(r"^cpr-wrap .+$", "\n".join(texts), re.MULTILINE)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_issue_templates_ask_for_something_that_can_be_checked(template):
    import typer

    from cpr_wrap.cli import app

    typed = commands(template)
    assert any(line.split()[1] in ("verify", "merge") for line in typed)
    for line in typed:
        name, *arguments = shlex.split(line)[1:]
        command = typer.main.get_command(app).commands[name]
        command.make_context(name, arguments)  # parses, and does not run


def test_there_are_two_issue_templates():
    assert [path.stem for path in TEMPLATES] == ["lower-a-result", "new-defense"]


def test_hooks_and_workflow_call_what_ci_calls():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    script = (ROOT / ".ci" / "run").read_text()
    for tool in ("ruff", "mypy"):
        assert any(hook["entry"].startswith(tool) for hook in hooks)
        assert f'"$VENV/bin/{tool}"' in script
    steps = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["all"]
    assert any(step.get("run") == ".ci/run" for step in steps["steps"])
    assert ".ci/docs" in script


def test_what_is_imported_is_declared():
    """Not brought along by chance by another package."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = toml.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [project["dependencies"], *project["optional-dependencies"].values()]
    declared = {_package(requirement) for group in listed for requirement in group}
    homes = metadata.packages_distributions()
    for file in sorted((ROOT / "cpr_wrap").rglob("*.py")):
        for name in _imports(ast.parse(file.read_text())) - set(sys.stdlib_module_names):
            if name in ("cpr_wrap", "autoattack"):  # the other name of pyautoattack
                continue
            owners = set(map(_package, homes.get(name, [name])))
            assert owners & declared, f"{file.name} imports {name}, which pyproject.toml leaves out"


def _package(requirement: str) -> str:
    """The name in a requirement, as the index has it."""
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


def _imports(tree: ast.AST) -> set[str]:
    """The packages that a module imports, by name or through `import_extra`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "import_extra":
            found |= {arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)}
    return {name.partition(".")[0] for name in found}
