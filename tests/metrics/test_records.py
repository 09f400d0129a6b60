from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from cpr_wrap.metrics import Records, inward, rounding

from .making import INF, findings, make


@pytest.fixture
def mixed():
    """Broken clean, broken, rejected clean, rejected, both, nothing."""
    return make([0, 0.1, INF, INF, 0.2, INF], [0.05, INF, 0, 0.2, 0.15, INF])


def test_rows_survive_json(mixed):
    text = "\n".join(json.dumps(row, allow_nan=False) for row in mixed.to_rows())
    rows = [json.loads(line) for line in text.splitlines()]
    assert Records.from_rows(rows, eps=mixed.eps, norm=mixed.norm) == mixed


@settings(max_examples=30)
@given(findings())
def test_rows_survive_json_whatever_was_found(records):
    rows = json.loads(json.dumps(records.to_rows(), allow_nan=False))
    assert Records.from_rows(rows, eps=records.eps, norm=records.norm) == records


def test_rows_keep_measured_columns_and_drop_what_is_no_column():
    records = make(
        [INF, 0.1],
        [0.1, INF],
        boundary_distance=torch.tensor([INF, 0.05], dtype=torch.float64),
        depth=torch.tensor([0.0, 0.15], dtype=torch.float64),
        base_label=torch.tensor([0, 0]),
    )
    rows = [row | {"seed": 3} for row in records.to_rows()]
    again = Records.from_rows(rows, eps=0.2, norm="Linf")
    assert again == records
    assert again.boundary_distance.tolist() == [INF, 0.05]


def test_no_rows_are_no_images():
    assert len(Records.from_rows([], eps=0.1, norm="L2")) == 0


def test_equality_sees_every_column(mixed):
    assert mixed == mixed.subset(range(6))
    assert mixed != mixed.subset([0, 1, 2, 3, 5, 4])
    assert mixed != replace(mixed, norm="L2")
    assert mixed != replace(mixed, eps=0.21)
    assert mixed != replace(mixed, rejected_by=("other", "", "clean", "PDIA", "PDIA", ""))
    assert mixed != replace(mixed, base_label=torch.zeros(6, dtype=torch.int64))
    assert mixed != "records"


def test_subset_takes_masks_and_positions(mixed):
    mask = torch.tensor([True, False, True, False, False, True])
    assert mixed.subset(mask) == mixed.subset([0, 2, 5])
    assert mixed.subset(torch.tensor([5, 0])).index.tolist() == [105, 100]
    assert len(mixed.subset(torch.zeros(6, dtype=torch.bool))) == 0


def test_tallies_count_names_most_first(mixed):
    assert mixed.first_broken_by() == {"HCMOA": 2, "clean": 1}
    assert list(mixed.first_broken_by()) == ["HCMOA", "clean"]
    assert mixed.first_rejected_by() == {"PDIA": 3, "clean": 1}


def test_repr_says_how_many(mixed):
    assert repr(mixed) == (
        "Records(6 images, Linf eps=0.2: 3 with an accepted mistake, "
        "4 made to be rejected, 1 of them clean)"
    )


def test_inward_keeps_order_zero_and_infinity():
    distance = torch.tensor([0.0, 1e-30, 1e-9, 0.1, INF], dtype=torch.float64)
    moved = inward(distance, 0.3)
    assert moved[0] == 0
    assert (moved[1:] > 0).all()
    assert moved[3].item() == pytest.approx(0.1 - rounding(0.3), abs=1e-15)
    assert moved[4] == INF


def test_rounding_covers_points_projected_in_float32():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(50, 784, generator=generator)
    for eps in (8 / 255, 0.1, 0.3, 0.7):
        z = torch.minimum(torch.maximum(torch.rand(x.shape, generator=generator), x - eps), x + eps)
        linf = (z - x).abs().amax(dim=1).double()
        assert (linf <= eps + rounding(eps)).all()
        offset = torch.randn(x.shape, generator=generator)
        z = x + offset * (eps / offset.norm(dim=1, keepdim=True))
        l2 = (z.double() - x.double()).norm(dim=1)
        assert (l2 > eps).any()  # otherwise this test shows nothing
        assert (l2 <= eps + rounding(eps)).all()


def test_a_point_one_rounding_outside_eps_is_accepted():
    eps = 0.2
    assert len(make([eps + rounding(eps)], [INF], eps=eps)) == 1


WRONG_COLUMNS = [
    ({"index": [0, 1, 2]}, TypeError, "index: expected a torch.Tensor, got list"),
    ({"label": torch.zeros(3)}, TypeError, "label: expected torch.int64, got torch.float32"),
    (
        {"outer_distance": torch.tensor([INF] * 3)},
        TypeError,
        "outer_distance: expected torch.float64, got torch.float32",
    ),
    (
        {"label": torch.zeros(3, dtype=torch.int64, device="meta")},
        ValueError,
        "label: expected a tensor on the CPU, got meta",
    ),
    (
        {"label": torch.zeros(4, dtype=torch.int64)},
        ValueError,
        r"label: expected one entry for each of the 3 images, got shape \(4,\)",
    ),
    ({"outer_by": ["", "", ""]}, TypeError, "outer_by: expected a tuple of strings"),
    ({"outer_by": ("", "", None)}, TypeError, "outer_by: expected a tuple of strings"),
    ({"rejected_by": ("",)}, ValueError, "rejected_by: expected one entry for each of the 3"),
    ({"index": torch.tensor([4, 4, 5])}, ValueError, "index: expected every image once"),
    ({"label": torch.tensor([0, -1, 0])}, ValueError, "label: expected a class number"),
    ({"clean_label": torch.tensor([0, -2, 0])}, ValueError, "clean_label: expected a class"),
    ({"base_label": torch.tensor([0, -1, 0])}, ValueError, "base_label: expected a class number"),
    ({"eps": 0.0}, ValueError, "eps: expected a finite number above 0"),
]


@pytest.mark.parametrize(("change", "error", "text"), WRONG_COLUMNS)
def test_columns_are_checked(change, error, text):
    with pytest.raises(error, match=text):
        replace(make([INF] * 3, [INF] * 3), **change)


@pytest.mark.parametrize("bad", [-0.1, float("nan")])
@pytest.mark.parametrize(
    "name", ["outer_distance", "rejected_radius", "boundary_distance", "depth"]
)
def test_distances_are_at_least_zero(name, bad):
    column = torch.tensor([INF, bad], dtype=torch.float64)
    with pytest.raises(ValueError, match=f"{name}: expected a distance of at least 0, not NaN"):
        replace(make([INF] * 2, [INF] * 2), **{name: column})


@pytest.mark.parametrize("name", ["outer_distance", "rejected_radius"])
def test_points_lie_within_eps(name):
    outer, rejected = ([0.21], [INF]) if name == "outer_distance" else ([INF], [0.21])
    with pytest.raises(ValueError, match=f"{name}: expected a point within eps=0.2") as caught:
        make(outer, rejected, eps=0.2)
    assert "index=100" in str(caught.value)


CONTRADICTIONS = [
    ({"outer_broken": torch.tensor([True, False])}, "outer_broken and a finite outer_distance"),
    ({"outer_by": ("", "HCMOA")}, "outer_by and a finite outer_distance go together"),
    ({"rejected_by": ("", "PDIA")}, "rejected_by and a finite rejected_radius go together"),
    ({"clean_label": torch.tensor([0, -1])}, "rejected_radius is 0 exactly where"),
    ({"clean_label": torch.tensor([0, 1])}, "outer_distance is 0 exactly where"),
]


@pytest.mark.parametrize(("change", "text"), CONTRADICTIONS)
def test_contradictions_are_refused(change, text):
    with pytest.raises(ValueError, match=text):
        replace(make([INF] * 2, [INF] * 2), **change)


def test_a_point_at_distance_zero_cannot_differ_from_the_clean_input(mixed):
    with pytest.raises(ValueError, match="rejected_radius is 0 exactly where"):
        replace(mixed, clean_label=torch.tensor([1, 0, 0, 0, 0, 0]))


def test_from_rows_names_the_missing_entry(mixed):
    rows = mixed.to_rows()
    del rows[2]["label"]
    with pytest.raises(LookupError, match="expected every row to have 'label'"):
        Records.from_rows(rows, eps=0.2, norm="Linf")


def test_subset_refuses_a_mask_of_another_length(mixed):
    with pytest.raises(ValueError, match=r"expected a mask of shape \(6,\), got shape \(2,\)"):
        mixed.subset(torch.tensor([True, False]))


def test_an_image_counts_once(mixed):
    with pytest.raises(ValueError, match="every image once"):
        mixed.subset([0, 0])
