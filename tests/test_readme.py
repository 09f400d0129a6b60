"""README's promises: its code runs, and CI finds its two commands."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_readmes_code_runs():
    names: dict[str, object] = {}
    for number, code in enumerate(blocks(README, "python")):
        exec(compile(code, f"README.md, block {number}", "exec"), names)
    assert "calibrated" in names


def test_contributings_rule_registers_and_answers():
    import torch

    from cpr_wrap import RULES, SelectiveClassifier

    from .toys import Line

    (code,) = blocks((ROOT / "CONTRIBUTING.md").read_text(), "python")
    names: dict[str, object] = {"__name__": "contributed"}
    try:
        exec(compile(code, "CONTRIBUTING.md", "exec"), names)
        model = SelectiveClassifier(Line(), RULES["entropy"](threshold=-0.6))
        x = torch.tensor([[0.5], [1.0]], dtype=torch.float64)  # p = 1/2, and sigmoid(1) = 0.73
        assert model.predict(x).tolist() == [-1, 1]
    finally:
        RULES._entries.pop("entropy", None)


def command(name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / ".ci" / "readme-command", name], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("name", "end"), [("test", "-n 2"), ("demo", "cpr-wrap demo")])
def test_ci_runs_readmes_commands_word_for_word(name, end):
    found = command(name).stdout.strip()
    assert found in README
    assert found.startswith("python3 -m venv")
    assert found.endswith(end)


def test_a_missing_command_is_named():
    found = command("nope")
    assert found.returncode == 1
    assert "README.md has no code block after <!-- command: nope -->" in found.stderr


def test_links_inside_the_repository_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
