"""What README, docs and examples promise: code runs, commands exist, links and numbers hold."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from examples import tables

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")],
    key=lambda path: path.name,
)
WITH_CODE = [page for page in PAGES if "```python" in page.read_text()]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def _registries():
    """What a page registers is gone afterwards."""
    from cpr_wrap import RULES
    from cpr_wrap.attacks.ensemble import BUDGETS
    from cpr_wrap.zoo import ZOOS

    registries = (RULES, ZOOS, BUDGETS)
    before = [dict(registry._entries) for registry in registries]
    yield
    for registry, entries in zip(registries, before, strict=True):
        registry._entries.clear()
        registry._entries.update(entries)


@pytest.fixture
def _little_work(monkeypatch):
    """Pages take few images and attack them two steps far: enough to see that their code runs."""
    import cpr_wrap
    from cpr_wrap.attacks.adaptive import Attack
    from cpr_wrap.attacks.ensemble import Quick
    from cpr_wrap.data import load_data

    stages_of = Quick.stages

    def shorter(self, rule, eps):
        return tuple(
            replace(stage, steps=min(stage.steps, 2), rounds=1)
            if isinstance(stage, Attack)
            else stage
            for stage in stages_of(self, rule, eps)
        )

    monkeypatch.setattr(Quick, "stages", shorter)

    def fewer(*words, **options):
        if "num" in options:
            options["num"] = min(options["num"], 10 if "validation" in words else 2)
        return load_data(*words, **options)

    monkeypatch.setattr(cpr_wrap, "load_data", fewer)


@pytest.mark.integration
@pytest.mark.usefixtures("_registries", "_little_work")
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_code_runs(page, tmp_path, monkeypatch):
    """The blocks of a page are one session, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page_" + page.stem.replace("-", "_")}
    # Dataclasses look their module up.
    monkeypatch.setitem(sys.modules, str(names["__name__"]), type(sys)(str(names["__name__"])))
    for number, code in enumerate(blocks(page.read_text(), "python"), start=1):
        exec(compile(code, f"{page.name}, Python block {number}", "exec"), names)


@pytest.mark.usefixtures("_registries")
def test_contributings_rule_answers():
    import torch

    from cpr_wrap import RULES, SelectiveClassifier

    from .toys import Line

    (code,) = blocks((ROOT / "CONTRIBUTING.md").read_text(), "python")
    exec(compile(code, "CONTRIBUTING.md", "exec"), {"__name__": "contributed"})
    model = SelectiveClassifier(Line(), RULES["entropy"](threshold=-0.6))
    x = torch.tensor([[0.5], [1.0]], dtype=torch.float64)  # p = 1/2, and sigmoid(1) = 0.73
    assert model.predict(x).tolist() == [-1, 1]


def typed_commands() -> list[str]:
    """Every line of a shell block that calls our command, line continuations joined."""
    lines = []
    for page in PAGES:
        for block in blocks(page.read_text(), "bash"):
            lines += block.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("cpr-wrap ")]


@pytest.mark.parametrize("line", typed_commands())
def test_commands_in_the_text_are_understood(line):
    import typer

    from cpr_wrap.cli import app

    name, *arguments = shlex.split(line)[1:]
    command = typer.main.get_command(app).commands[name]
    command.make_context(name, arguments)  # parses, and does not run


def test_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_readme_has_every_rule_and_source():
    from cpr_wrap import RULES
    from cpr_wrap.zoo import ZOOS

    # Tests of plug-ins leave rules of their own behind.
    ours = [rule for rule in RULES if RULES[rule].__module__.startswith("cpr_wrap.rules.")]
    assert len(ours) == 6
    for rule in ours:
        assert f"| `{rule}` | `{RULES[rule].__name__}` |" in README
    for source in ("bundled", "robustbench", "timm", "hf-hub", "local"):
        assert source in ZOOS
        assert f"`{source}:" in README


def readme_command(name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / ".ci" / "readme-command", name], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("name", "end"), [("test", "-n 2"), ("demo", "cpr-wrap demo")])
def test_ci_runs_readmes_commands_word_for_word(name, end):
    found = readme_command(name).stdout.strip()
    assert found in README
    assert found.startswith("python3 -m venv")
    assert found.endswith(end)


def test_a_missing_command_is_named():
    found = readme_command("nope")
    assert found.returncode == 1
    assert "README.md has no code block after <!-- command: nope -->" in found.stderr


def anchors(page: Path) -> set[str]:
    """What a link can lead to inside a page: its headings, as GitHub and the site name them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "page",
    [*PAGES, ROOT / "CHANGELOG.md", ROOT / "examples" / "README.md"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text())
    for target, heading in links:
        file = page.parent / target if target else page
        assert file.exists(), target
        if heading:
            assert heading in anchors(file), f"{target}#{heading}"


def test_every_page_is_in_the_table_of_contents():
    index = (ROOT / "docs" / "index.md").read_text()
    listed = [line for block in blocks(index, r"\{toctree\}") for line in block.splitlines()]
    listed = [line for line in listed if line and not line.startswith(":")]
    pages = [file.stem for end in ("md", "ipynb") for file in (ROOT / "docs").glob(f"*.{end}")]
    assert sorted(listed) == sorted(set(pages) - {"index"})


def test_the_reference_has_every_public_name():
    import cpr_wrap

    lines = (ROOT / "docs" / "api.md").read_text().splitlines()
    assert sorted(line.strip() for line in lines if re.match(r"   \w+$", line)) == sorted(
        cpr_wrap.__all__
    )


def test_pictures_of_the_pages_are_there():
    for page in (*PAGES, ROOT / "docs" / "wrap-a-model.ipynb"):
        for target in re.findall(r"!\[[^\]]*\]\(([^):]+)\)", page.read_text()):
            assert (page.parent / target).stat().st_size > 1000, target


@pytest.mark.parametrize(
    ("name", "file", "marker", "word"),
    [
        # `cpr-wrap advise --table` wrote the first file, examples/fragile_network.py the second.
        ("choosing-a-radius.md", "choosing-a-radius.md", "advice", "advised"),
        ("timm.md", "fragile.md", "fragile", "of 20 pictures right"),
    ],
)
def test_pages_quote_what_was_measured(name, file, marker, word):
    measured = (ROOT / "examples" / "results" / file).read_text().strip()
    page = (ROOT / "docs" / name).read_text()
    begin, end = f"<!-- {marker}: begin -->", f"<!-- {marker}: end -->"
    assert page[page.index(begin) + len(begin) : page.index(end)].strip() == measured
    assert word in measured


@pytest.fixture
def run_example(monkeypatch, tmp_path, capsys):
    """Runs a script of examples/ in an empty folder and gives what it printed."""

    def run(name: str, *arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(ROOT / "examples"))
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.slow
def test_the_notebook_runs_and_draws(run_example, tmp_path):
    pytest.importorskip("nbclient", reason="needs the extra docs")
    run_example("run_notebook.py", "--out", str(tmp_path / "out.ipynb"))
    cells = json.loads((tmp_path / "out.ipynb").read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert any("RobustnessCurve(30 images" in "".join(o.get("text", ())) for o in outputs)


@pytest.mark.integration
def test_quickstart_runs(run_example):
    out = run_example("quickstart.py", "--num", "2", "--validation", "10")
    assert "RobustnessCurve(2 images, Linf eps=0.3)" in out
    assert len(re.findall(r"^total robust loss, .*: [01]\.\d{3}$", out, re.MULTILINE)) == 3


def test_paste_puts_text_between_its_markers(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from _paste import paste

    page = tmp_path / "page.md"
    page.write_text("above\n<!-- a: begin, by x -->\nold\n<!-- a: end -->\nbelow\n")
    paste("a", "new\n", page)
    paste("a", "newer", page)
    assert page.read_text() == ("above\n<!-- a: begin, by x -->\nnewer\n<!-- a: end -->\nbelow\n")
    with pytest.raises(LookupError, match=r"has no markers <!-- b: begin"):
        paste("b", "", page)


@pytest.mark.parametrize("name", tables.PAGES)
def test_measured_tables_are_those_of_the_results(name):
    text = (ROOT / "docs" / name).read_text()
    assert tables.filled(text) == text


def test_every_measured_table_has_its_place():
    pages = "".join((ROOT / "docs" / name).read_text() for name in tables.PAGES)
    assert {name for _, name, _, _ in tables._BLOCK.findall(pages)} == set(tables.TABLES)
