"""Stopped and gone on with: the same as never stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch.utils.data import Dataset

from cpr_wrap.training import train
from cpr_wrap.training.checkpoint import STATE, load_state
from cpr_wrap.training.data import SAMPLE
from cpr_wrap.training.recipes import Milestones
from tests.training.making import assert_same, quick_recipe, small_network, stripes, weights

X, Y = stripes(72)
HELD_OUT = stripes(60, seed=1)


def without_time(history):
    return [replace(record, seconds=0.0) for record in history]


class Fragile(Dataset):
    """The same images, until something interrupts the reading.

    Before the training begins, one image is read to try the network and some, twice, to identify
    the data.
    """

    classes = ("top", "middle", "bottom")

    def __init__(self, reads):
        self.reads = reads + 1 + 2 * SAMPLE

    def __len__(self):
        return len(Y)

    def __getitem__(self, index):
        if self.reads == 0:
            raise KeyboardInterrupt
        self.reads -= 1
        return X[index], Y[index]


@pytest.mark.parametrize("save_seconds", [0.0, 1e9])
@pytest.mark.parametrize("reads", [30, 72 + 40, 3 * 72 + 20])
def test_interrupted_and_resumed_gives_the_same_weights(tmp_path, reads, save_seconds):
    recipe = quick_recipe("at", augmentation="crop-flip")
    straight = train(
        recipe, (X, Y), network=small_network(dropout=0.3), validation=HELD_OUT, progress=False
    )
    with pytest.raises(KeyboardInterrupt):
        train(
            recipe,
            Fragile(reads),
            network=small_network(dropout=0.3),
            validation=HELD_OUT,
            out=tmp_path,
            save_seconds=save_seconds,
            progress=False,
        )
    state = load_state(tmp_path)
    if save_seconds == 0:
        assert (state["epoch"], state["batch"]) == divmod(reads // 72 * 5 + reads % 72 // 16, 5)
    resumed = train(
        recipe,
        (X, Y),
        # where there is a state, these weights do not matter any more
        network=small_network(seed=7 if state else 0, dropout=0.3),
        validation=HELD_OUT,
        out=tmp_path,
        progress=False,
    )
    assert_same(weights(straight.network), weights(resumed.network))
    assert without_time(straight.history) == without_time(resumed.history)


def test_a_finished_training_is_not_repeated(tmp_path):
    recipe = quick_recipe(epochs=1)
    first = train(recipe, (X, Y), network=small_network(), out=tmp_path, progress=False)
    state = (tmp_path / STATE).stat().st_mtime_ns
    again = train(recipe, (X, Y), network=small_network(seed=5), out=tmp_path, progress=False)
    assert_same(weights(first.network), weights(again.network))
    assert (tmp_path / STATE).stat().st_mtime_ns == state


def test_resume_false_begins_anew(tmp_path):
    recipe = quick_recipe(epochs=1)
    train(recipe, (X, Y), network=small_network(), out=tmp_path, progress=False)
    other = replace(recipe, lr=0.01)
    with pytest.raises(ValueError, match=r"another training \(other lr\); choose another folder"):
        train(other, (X, Y), network=small_network(), out=tmp_path, progress=False)
    anew = train(other, (X, Y), network=small_network(), out=tmp_path, resume=False, progress=False)
    alone = train(other, (X, Y), network=small_network(), progress=False)
    assert_same(weights(anew.network), weights(alone.network))


@pytest.mark.parametrize("reads", [2 * 72 + 40, 3 * 72 + 20])
def test_early_stop_survives_an_interruption(tmp_path, reads):
    def run(data, seed, out=None):
        return train(
            # a leap in the learning rate ruins what two epochs have learned
            quick_recipe("at", schedule=Milestones(epochs=(2,), rate=30.0)),
            data,
            network=small_network(seed=seed),
            validation=HELD_OUT,
            early_stop=3,
            out=out,
            save_seconds=0,
            progress=False,
        )

    straight = run((X, Y), 0)
    robust = [record.validation_robust for record in straight.history]
    assert robust.index(max(robust)) < len(robust) - 1  # the last weights are not the best
    with pytest.raises(KeyboardInterrupt):
        run(Fragile(reads), 0, tmp_path)
    resumed = run((X, Y), 7, tmp_path)
    assert_same(weights(straight.network), weights(resumed.network))
    assert without_time(straight.history) == without_time(resumed.history)


def test_a_damaged_state_costs_a_few_steps_and_not_the_result(tmp_path):
    recipe = quick_recipe("at", epochs=2)
    straight = train(recipe, (X, Y), network=small_network(), progress=False)
    with pytest.raises(KeyboardInterrupt):
        train(
            recipe,
            Fragile(72 + 40),
            network=small_network(),
            out=tmp_path,
            save_seconds=0,
            progress=False,
        )
    data = bytearray((tmp_path / STATE).read_bytes())
    data[len(data) // 2] ^= 0x10
    (tmp_path / STATE).write_bytes(data)
    with pytest.warns(UserWarning, match=r"checkpoint\.pt is damaged"):
        resumed = train(recipe, (X, Y), network=small_network(), out=tmp_path, progress=False)
    assert_same(weights(straight.network), weights(resumed.network))
