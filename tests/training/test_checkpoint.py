from __future__ import annotations

import os

import pytest
import torch

from cpr_wrap.training import checkpoint
from cpr_wrap.training.checkpoint import load_state, save_state


def test_no_state_yet(tmp_path):
    assert load_state(tmp_path) is None


def test_state_comes_back(tmp_path):
    save_state(tmp_path, {"epoch": 3, "network": {"w": torch.arange(3.0)}})
    state = load_state(tmp_path)
    assert state["epoch"] == 3
    assert state["network"]["w"].tolist() == [0, 1, 2]


def test_a_kill_while_writing_leaves_the_old_state(tmp_path, monkeypatch):
    save_state(tmp_path, {"epoch": 1})

    def killed(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        save_state(tmp_path, {"epoch": 2})
    assert load_state(tmp_path) == {"epoch": 1}


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9])
def test_a_flipped_byte_is_noticed_and_the_state_before_is_read(tmp_path, share):
    for epoch in (1, 2, 3):
        save_state(tmp_path, {"epoch": epoch, "network": {"w": torch.full((100,), float(epoch))}})
    file = tmp_path / checkpoint.STATE
    data = bytearray(file.read_bytes())
    data[int(share * len(data))] ^= 0x01
    file.write_bytes(data)
    with pytest.warns(UserWarning, match=r"checkpoint\.pt is damaged.*resuming from the state bef"):
        state = load_state(tmp_path)
    assert state["epoch"] == 2
    assert state["network"]["w"].unique().tolist() == [2.0]
    # The damaged file does not take the place of the good one.
    save_state(tmp_path, {"epoch": 4})
    file.unlink()
    assert load_state(tmp_path)["epoch"] == 2


def test_two_damaged_states_are_none(tmp_path):
    for name in (checkpoint.STATE, checkpoint.PREVIOUS):
        (tmp_path / name).write_bytes(b"not a checkpoint")
    with pytest.warns(UserWarning, match="is damaged") as heard:
        assert load_state(tmp_path) is None
    assert len(heard) == 2


def test_a_state_of_an_earlier_version_is_refused_and_not_overwritten(tmp_path):
    torch.save({"epoch": 1}, tmp_path / checkpoint.STATE)
    with pytest.raises(ValueError, match=r"another version of cpr-wrap.*or pass resume=False"):
        load_state(tmp_path)


def test_a_state_with_code_in_it_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "evil"),))

    save_state(tmp_path, {"epoch": Evil()})
    with pytest.warns(UserWarning, match=r"checkpoint\.pt cannot be read"):
        assert load_state(tmp_path) is None
    assert not (tmp_path / "evil").exists()
