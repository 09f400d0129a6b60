from __future__ import annotations

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from cpr_wrap.training.data import TrainingData, epoch_batches
from tests.training.making import stripes

X, Y = stripes(12)


def test_order_is_a_permutation_that_changes_with_epoch_and_seed():
    (first,) = epoch_batches(1000, 1000, 0, 0)
    assert sorted(first.tolist()) == list(range(1000))
    assert torch.equal(first, torch.cat(epoch_batches(1000, 100, 0, 0)))
    for other in (*epoch_batches(1000, 1000, 0, 1), *epoch_batches(1000, 1000, 1, 0)):
        assert (first == other).float().mean() < 0.02


@pytest.mark.parametrize(
    ("count", "size", "sizes"),
    [
        (12, 4, [4, 4, 4]),
        (14, 4, [4, 4, 4, 2]),
        (13, 4, [4, 4, 5]),  # a single image is no batch
        (3, 4, [3]),
        (1, 4, [1]),
        (3, 1, [1, 1, 1]),
    ],
)
def test_an_epoch_holds_every_image_once_and_no_batch_of_a_single_one(count, size, sizes):
    batches = epoch_batches(count, size, 0, 3)
    assert [len(batch) for batch in batches] == sizes
    assert sorted(torch.cat(batches).tolist()) == list(range(count))


def test_batches_are_the_images_asked_for():
    numbers = [torch.tensor([3, 1]), torch.tensor([7, 11, 0])]
    for source in (TrainingData((X, Y)), TrainingData(TensorDataset(X, Y), num_classes=3)):
        assert len(source) == 12
        assert source.num_classes == 3
        assert torch.equal(source.first, X[:1])
        for chosen, (x, y) in zip(numbers, source.batches(numbers), strict=True):
            assert torch.equal(x, X[chosen])
            assert torch.equal(y, Y[chosen])


def test_a_data_set_may_be_read_by_other_processes():
    source = TrainingData(TensorDataset(X, Y), num_classes=3, workers=1)
    state = torch.get_rng_state()
    batches = list(source.batches([torch.tensor([0, 2]), torch.tensor([5])]))
    assert [y.tolist() for _, y in batches] == [[0, 2], [2]]
    assert torch.equal(torch.get_rng_state(), state)


def test_bad_images_are_refused():
    with pytest.raises(ValueError, match=r"expected pixels in \[0, 1\]"):
        TrainingData((X * 255, Y))
    with pytest.raises(ValueError, match="expected one label for each of the 12 images"):
        TrainingData((X, Y[:5]))
    with pytest.raises(ValueError, match=r"expected labels from 0 to 1, got labels from 0 to 2"):
        TrainingData((X, Y), num_classes=2)
    with pytest.raises(ValueError, match="does not say it; pass num_classes"):
        TrainingData(TensorDataset(X, Y))
    with pytest.raises(ValueError, match=r"expected pixels in \[0, 1\]"):
        _ = TrainingData(TensorDataset(X * 255, Y), num_classes=3).first

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(TypeError, match="a torch data set with a length, got Stream"):
        TrainingData(Stream())
