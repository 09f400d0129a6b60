"""A model that needs no training, on disk, and a way to type commands."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from cpr_wrap.cli import app
from cpr_wrap.data import load_data
from cpr_wrap.networks import NETWORKS
from cpr_wrap.rules import AcceptAll
from cpr_wrap.selective import SelectiveClassifier


def _nearest_mean(*, num_outputs: int = 10) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, num_outputs))


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Folder of a linear MNIST network that answers with the nearest class mean."""
    if "nearest-mean" not in NETWORKS:
        NETWORKS.register("nearest-mean")(_nearest_mean)
    data = load_data("mnist", "validation")
    network = _nearest_mean().eval()
    means = torch.stack([data.images[data.labels == k].mean(dim=0).flatten() for k in range(10)])
    with torch.no_grad():
        network[1].weight.copy_(means)
        network[1].bias.copy_(-means.square().sum(dim=1) / 2)
    source = {
        "network": "nearest-mean",
        "dataset": "mnist",
        "norm": "Linf",
        "eps": 0.1,
        "input_shape": [1, 28, 28],
        "num_classes": 10,
    }
    return SelectiveClassifier(network, AcceptAll(), source).save(
        tmp_path_factory.mktemp("model") / "saved"
    )


@pytest.fixture
def type_command(monkeypatch, tmp_path):
    """Type a command in an empty folder and get what came of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CPR_WRAP_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        words = [str(word) for word in words]
        monkeypatch.setattr(sys, "argv", ["cpr-wrap", *words])
        return CliRunner().invoke(app, words)

    return run


@pytest.fixture(scope="session")
def result(saved, tmp_path_factory):
    """A result folder of a real, small evaluation."""
    out = tmp_path_factory.mktemp("runs") / "small"
    words = ["curve", f"local:{saved}", "--num", "8", "--budget", "quick", "--rule", "confidence"]
    words += ["--threshold", "0.8", "--eps", "0.05", "--out", str(out), "--name", "means"]
    before = sys.argv
    sys.argv = ["cpr-wrap", *words]
    try:
        answer = CliRunner().invoke(app, words, catch_exceptions=False)
    finally:
        sys.argv = before
    assert answer.exit_code == 0, answer.output
    return out
