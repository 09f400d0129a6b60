from __future__ import annotations

import json
import os

import pytest
import torch
from safetensors.torch import load_file

from cpr_wrap.training import checkpoint
from cpr_wrap.training.checkpoint import load_state, portable, save_model, save_state
from tests.training.making import small_network


def test_no_state_yet(tmp_path):
    assert load_state(tmp_path) is None


def test_state_comes_back(tmp_path):
    save_state(tmp_path, {"epoch": 3, "network": {"w": torch.arange(3.0)}})
    state = load_state(tmp_path)
    assert state["epoch"] == 3
    assert state["network"]["w"].tolist() == [0, 1, 2]


def test_a_kill_while_writing_leaves_the_old_state(tmp_path, monkeypatch):
    save_state(tmp_path, {"epoch": 1})

    def killed(state, path):
        path.write_bytes(b"half a file")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        save_state(tmp_path, {"epoch": 2})
    assert load_state(tmp_path) == {"epoch": 1}


def test_a_damaged_state_is_said_to_be_one(tmp_path):
    (tmp_path / checkpoint.STATE).write_bytes(b"not a checkpoint")
    with pytest.raises(RuntimeError, match=r"cannot be read .* remove it to train from the beginn"):
        load_state(tmp_path)


def test_a_state_with_code_in_it_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "evil"),))

    torch.save({"epoch": Evil()}, tmp_path / checkpoint.STATE)
    with pytest.raises(RuntimeError, match="cannot be read"):
        load_state(tmp_path)
    assert not (tmp_path / "evil").exists()


def test_models_are_written_contiguous_with_their_config(tmp_path):
    network = small_network().to(memory_format=torch.channels_last)
    tensors = portable(network)
    assert all(tensor.is_contiguous() for tensor in tensors.values())
    save_model(tmp_path, tensors, {"seed": 4})
    read = load_file(tmp_path / checkpoint.WEIGHTS)
    for name, tensor in network.state_dict().items():
        assert torch.equal(read[name], tensor)
    assert json.loads((tmp_path / checkpoint.CONFIG).read_text()) == {"seed": 4}
    assert {p.name for p in tmp_path.iterdir()} == {checkpoint.WEIGHTS, checkpoint.CONFIG}
