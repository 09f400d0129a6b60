from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from cpr_wrap import calibrate
from cpr_wrap.meter import count_passes
from cpr_wrap.metrics.intervals import clopper_pearson
from cpr_wrap.rules import (
    AcceptAll,
    Confidence,
    Consistency,
    CPRWrapper,
    RectifiedConfidence,
    RejectClass,
)
from cpr_wrap.selective import SelectiveClassifier

from .toys import Curved, Island, Line, Linear, Plane, pixels


def at_distances(distances):
    """Images on both sides of the line's boundary, in mixed order, with their right labels."""
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(len(distances))[: len(distances)]
    order = torch.randperm(len(distances), generator=torch.Generator().manual_seed(3))
    x = (0.5 + sign * distances)[order, None]
    return x, (x[:, 0] > 0.5).long()


DISTANCES = torch.arange(1, 101, dtype=torch.float64) / 250  # 0.004, 0.008, …, 0.4


def measured(model, x, y):
    """Correctly classified, and how many of them the model rejects, asked anew."""
    selection = model(x)
    correct = selection.predicted == y
    return int(correct.sum()), int((correct & ~selection.accepted).sum())


# A score's quantile.


@pytest.mark.parametrize("wanted", [1, 7, 29, 99])
def test_threshold_lies_at_the_score_of_the_next_image(wanted):
    x, y = at_distances(DISTANCES)
    model = SelectiveClassifier(Line(slope=5), Confidence())
    calibrated, record = calibrate(model, x, y, wanted / 100)
    # p = sigmoid(10 d); `wanted` images are nearer to the boundary than image number `wanted`.
    expected = (10 * DISTANCES[wanted]).sigmoid().item()
    assert calibrated.rule.threshold == pytest.approx(expected, rel=1e-12)
    assert measured(calibrated, x, y) == (100, wanted)
    assert record.num_rejected == wanted
    assert record.measured_rate == wanted / 100
    assert record.reached
    assert record.note == ""


def test_only_correctly_classified_images_count():
    x, y = at_distances(DISTANCES)
    wrong = (x[:, 0] - 0.5).abs() < 0.098  # the 24 nearest, whose low scores would raise the rate
    model = SelectiveClassifier(Line(slope=5), Confidence())
    calibrated, record = calibrate(model, x, torch.where(wrong, 1 - y, y), 0.25)
    assert (record.num_correct, record.num_images) == (76, 100)
    assert record.num_rejected == 19
    assert record.measured_rate == 0.25
    assert record.overall_rate == (24 + 19) / 100
    assert calibrated.rule.threshold == pytest.approx((10 * DISTANCES[24 + 19]).sigmoid().item())


def test_the_record_says_what_was_done():
    x, y = at_distances(DISTANCES)
    model = SelectiveClassifier(Line(), Confidence(threshold=0.5), source={"base": "toy:line"})
    calibrated, record = calibrate(model, x, y, 0.1, confidence=0.9)
    assert record.before == model.rule == Confidence(threshold=0.5)
    assert record.after == calibrated.rule
    assert record.reject_rate == 0.1
    assert record.interval == clopper_pearson(10, 100, 0.9)
    assert calibrated.base is model.base
    assert calibrated.source == model.source


def test_the_interval_covers_the_true_rate_as_often_as_it_says():
    # With x uniform on [0, 1] a threshold at distance t rejects 2 t of all images.
    model = SelectiveClassifier(Line(slope=5), Confidence())
    repeats, hits = 200, 0
    for seed in range(repeats):
        x = pixels(60, 1, seed=seed)
        calibrated, record = calibrate(model, x, (x[:, 0] > 0.5).long(), 0.1, confidence=0.8)
        true_rate = 2 * math.log(calibrated.rule.threshold / (1 - calibrated.rule.threshold)) / 10
        hits += record.interval.low <= true_rate <= record.interval.high
    assert hits / repeats > 0.8 - 3 * math.sqrt(0.8 * 0.2 / repeats)


def test_tied_scores_put_a_rate_out_of_reach():
    distances = torch.cat([torch.full((10,), 0.01), torch.linspace(0.1, 0.4, 90)]).double()
    x, _ = at_distances(distances)
    x = torch.where((x - 0.5).abs() < 0.02, 0.51, x)  # exactly the same image, not its mirror
    model = SelectiveClassifier(Line(slope=5), Confidence())
    _, record = calibrate(model, x, (x[:, 0] > 0.5).long(), 0.05)
    assert record.num_rejected == 0
    assert not record.reached
    assert record.note.startswith("10 correctly classified images share the score 0.52")


def test_too_few_images_for_a_small_rate_are_said():
    x, y = at_distances(DISTANCES[:50])
    for rule in (Confidence(), Consistency(radius=0.1, steps=10, step_size=0.01)):
        model = SelectiveClassifier(Line(slope=5), rule)
        calibrated, record = calibrate(model, x, y, 0.01)
        assert measured(calibrated, x, y) == (50, 0)
        assert not record.reached
        assert record.note == (
            "50 correctly classified images cannot resolve a rate of 0.01; it takes 100"
        )


# A reject class, and an auxiliary head.


def with_reject_class():
    # Class logits ∓(x - 0.5) and a reject logit of 0.05: rejects what is nearer than that.
    return Linear([[-1.0], [1.0], [0.0]], [0.5, -0.5, 0.05])


def test_a_reject_class_keeps_its_threshold():
    x, y = at_distances(DISTANCES)
    model = SelectiveClassifier(with_reject_class(), RejectClass())
    calibrated, record = calibrate(model, x, y, 0.3)
    assert calibrated.rule == RejectClass(threshold=0.0)
    assert record.num_rejected == int((DISTANCES < 0.05).sum())
    assert not record.reached
    assert "threshold stays at 0; calibrate(..., force=True) moves it" in record.note


def test_a_reject_class_moves_if_forced():
    x, y = at_distances(DISTANCES)
    model = SelectiveClassifier(with_reject_class(), RejectClass())
    calibrated, record = calibrate(model, x, y, 0.3, force=True)
    # The score is |d| - 0.05.
    assert calibrated.rule.threshold == pytest.approx(DISTANCES[30].item() - 0.05)
    assert (record.num_rejected, record.reached, record.note) == (30, True, "")


def test_rectified_confidence_is_cut_at_its_quantile():
    x, y = at_distances(DISTANCES)
    model = SelectiveClassifier(
        Linear([[-5.0], [5.0], [0.0]], [2.5, -2.5, 0.0]), RectifiedConfidence()
    )
    calibrated, record = calibrate(model, x, y, 0.2)
    # A is 1/2 everywhere, so the score is sigmoid(10 d) / 2.
    assert calibrated.rule.threshold == pytest.approx((10 * DISTANCES[20]).sigmoid().item() / 2)
    assert record.num_rejected == 20


# CPR's radius.


@pytest.mark.parametrize("norm", ["Linf", "L2"])
@pytest.mark.parametrize("wanted", [1, 10, 33])
def test_radius_on_the_line_is_the_largest_that_rejects_no_more(norm, wanted):
    x, y = at_distances(DISTANCES)
    model = CPRWrapper(Line(), radius=0.01, steps=10, step_size=0.02, norm=norm)
    calibrated, record = calibrate(model, x, y, wanted / 100)
    # An image at distance d is rejected from radius d on; the next one at DISTANCES[wanted].
    limit, tolerance = DISTANCES[wanted].item(), 1e-3 * 10 * 0.02
    assert limit - tolerance <= calibrated.rule.radius <= limit
    assert calibrated.rule == replace(model.rule, radius=calibrated.rule.radius)
    assert measured(calibrated, x, y) == (100, wanted)
    assert (record.num_rejected, record.reached, record.note) == (wanted, True, "")


@pytest.mark.parametrize(("norm", "reach"), [("Linf", 1.4), ("L2", 1.0)])
def test_radius_in_the_plane(norm, reach):
    x = 0.25 + 0.5 * pixels(200, 2)
    y = (Plane.distance(x) > 0).long()
    y[:20] = 1 - y[:20]
    model = CPRWrapper(Plane(), radius=0.01, steps=20, step_size=0.01, norm=norm)
    calibrated, record = calibrate(model, x, y, 0.1, batch_size=64)
    limit = Plane.distance(x[20:]).abs().sort().values[18].item() / reach
    assert limit - 1e-3 * 0.2 <= calibrated.rule.radius <= limit
    assert (record.num_correct, record.num_rejected, record.reached) == (180, 18, True)
    assert record.overall_rate == int((~calibrated(x).accepted).sum()) / 200


def test_a_rate_beyond_all_steps_is_said():
    x, y = at_distances(DISTANCES)
    model = CPRWrapper(Line(), radius=0.01, steps=5, step_size=0.01)  # reaches 12 images
    calibrated, record = calibrate(model, x, y, 0.5)
    assert calibrated.rule.radius == pytest.approx(0.05)
    assert (record.num_rejected, record.reached) == (12, False)
    assert (
        "even radius 0.05, the largest possible, rejects 12 of 100; raise steps or step_size"
        in record.note
    )


def test_a_rate_that_needs_all_steps_is_reached():
    x, y = at_distances(DISTANCES)
    model = CPRWrapper(Line(), radius=0.01, steps=5, step_size=0.01)
    calibrated, record = calibrate(model, x, y, 0.12)
    assert calibrated.rule.radius == pytest.approx(0.05)
    assert (record.num_rejected, record.reached, record.note) == (12, True, "")


def test_images_that_flip_together_put_a_rate_out_of_reach():
    x, _ = at_distances(torch.cat([torch.full((10,), 0.1), torch.linspace(0.3, 0.4, 90)]).double())
    x = torch.where((x - 0.5).abs() < 0.2, 0.6, x)
    model = CPRWrapper(Line(), radius=0.01, steps=20, step_size=0.01)
    calibrated, record = calibrate(model, x, (x[:, 0] > 0.5).long(), 0.05)
    assert 0.0999 < calibrated.rule.radius <= 0.1
    assert (record.num_rejected, record.reached) == (0, False)
    assert record.note.startswith("just above radius 0.09999")
    assert record.note.endswith("several images are rejected at once")


def test_images_on_the_boundary_put_a_small_rate_out_of_reach():
    x = torch.tensor([[0.5 + 1e-9]] * 10 + [[0.8]] * 90, dtype=torch.float64)
    model = CPRWrapper(Line(), radius=0.01, steps=20, step_size=0.01)
    calibrated, record = calibrate(model, x, torch.ones(100, dtype=torch.long), 0.05)
    assert calibrated.rule.radius < 1e-5
    assert (record.num_rejected, record.reached) == (10, False)
    assert "rejects as few as requested" in record.note


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3, 0.5])
def test_rejection_that_does_not_grow_with_the_radius_is_measured_not_assumed(rate):
    # Long steps lead over the island (0.45 to 0.5) and beyond: some images are rejected at a small
    # radius and accepted at a large one.
    x = torch.linspace(0.3, 0.7, 101, dtype=torch.float64)[:, None]
    model = CPRWrapper(Island(), radius=0.05, steps=2, step_size=0.06)
    y = model.base(x).argmax(1)
    rejected = torch.stack(
        [~model.with_rule(replace(model.rule, radius=r))(x).accepted for r in (0.04, 0.08, 0.12)]
    )
    assert (rejected[:-1] & ~rejected[1:]).any()
    calibrated, record = calibrate(model, x, y, rate)
    assert measured(calibrated, x, y) == (101, record.num_rejected)
    assert record.num_rejected <= 101 * rate or not record.reached
    assert record.reached or record.note


@pytest.mark.parametrize("keep", ["last", "best"])
def test_a_curved_network_is_calibrated_within_one_image(keep):
    x = pixels(300)
    model = CPRWrapper(Curved(), radius=0.1, steps=10, step_size=0.03, keep=keep)
    y = model.base(x).argmax(1)
    calibrated, record = calibrate(model, x, y, 0.1)
    assert measured(calibrated, x, y) == (300, record.num_rejected)
    assert 29 <= record.num_rejected <= 30
    assert record.interval.low < 0.1 < record.interval.high


def test_searching_costs_little_more_than_two_measurements():
    x, y = at_distances(torch.linspace(0.001, 0.45, 1000, dtype=torch.float64))
    steps = 5
    model = CPRWrapper(Line(), radius=0.01, steps=steps, step_size=0.03)
    with count_passes() as passes:
        calibrate(model, x, y, 0.05)
    measurement = 1000 * (2 * steps + 1)
    assert 2 * measurement < passes.total < 3 * measurement


def test_the_batch_size_does_not_matter():
    x, y = at_distances(DISTANCES)
    for rule in (Confidence(), Consistency(radius=0.1, steps=10, step_size=0.01)):
        model = SelectiveClassifier(Line(slope=5), rule)
        records = [calibrate(model, x, y, 0.1, batch_size=size).record for size in (7, 100)]
        assert records[0] == records[1]


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_right_without_grad_mode(around):
    model = CPRWrapper(Line(), radius=0.01, steps=10, step_size=0.02)
    expected = calibrate(model, *at_distances(DISTANCES), 0.1).record
    with around():
        assert calibrate(model, *at_distances(DISTANCES), 0.1).record == expected


# Bad input.


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"reject_rate": 0.0}, "reject_rate: expected a number between 0 and 1, got 0.0"),
        ({"reject_rate": 5}, "reject_rate: expected a number between 0 and 1, got 5"),
        ({"confidence": 95}, "confidence: expected a number between 0 and 1, got 95"),
        ({"max_radius": 0}, "max_radius: expected a finite number above 0, got 0"),
        ({"batch_size": 0}, "batch_size: expected a whole number of at least 1, got 0"),
        ({"y_val": torch.zeros(3, dtype=torch.long)}, "y_val: expected one label for each of"),
        ({"y_val": torch.full((100,), 2)}, "y_val: expected labels from 0 to 1, got labels"),
        ({"x_val": torch.full((100, 1), 3.0)}, r"x_val: expected pixels in \[0, 1\]"),
    ],
)
def test_bad_input_is_named(change, text):
    x, y = at_distances(DISTANCES)
    model = SelectiveClassifier(Line(), Confidence())
    arguments = {"x_val": x, "y_val": y, "reject_rate": 0.1, **change}
    with pytest.raises(ValueError, match=text):
        calibrate(model, **arguments)


def test_a_rule_that_never_rejects_cannot_be_calibrated():
    x, y = at_distances(DISTANCES)
    with pytest.raises(ValueError, match="rule 'none' never rejects, so there is nothing to cal"):
        calibrate(SelectiveClassifier(Line(), AcceptAll()), x, y, 0.1)


def test_a_network_that_is_always_wrong_cannot_be_calibrated():
    x, y = at_distances(DISTANCES)
    with pytest.raises(ValueError, match="none of the 100 validation images is classified corr"):
        calibrate(SelectiveClassifier(Line(), Confidence()), x, 1 - y, 0.1)


@pytest.mark.parametrize(("share", "said"), [(0.4, True), (0.6, False)])
def test_a_radius_below_half_a_grey_level_is_said_with_what_half_a_level_rejects(share, said):
    """Ten images flip at `share` gray levels, thirty more at 0.45, the other sixty never do."""
    grey = 1 / 255
    near = torch.tensor([0.45 * grey] * 30 + [0.3] * 60, dtype=torch.float64)
    x, y = at_distances(torch.cat([torch.full((10,), share * grey).double(), near]))
    calibrated, record = calibrate(CPRWrapper(Line(), radius=0.1, steps=5), x, y, 0.1)
    assert record.num_rejected <= 10
    if said:
        assert calibrated.rule.radius < 0.45 * grey
        assert "is below half a gray level (0.002), where cpr rejects 40 of 100" in record.note
    few = x[(x[:, 0] - 0.5).abs() > 0.5 * grey]
    clear = calibrate(
        CPRWrapper(Line(), radius=0.1, steps=5), few, (few[:, 0] > 0.5).long(), 0.1
    ).record
    assert "gray level" not in clear.note


def test_a_search_that_stops_below_half_a_grey_level_does_not_make_a_network_fragile():
    """All images flip at 0.0025; the search, which has reached the rate, stops at 1 / 512."""
    x, y = at_distances(torch.full((20,), 0.0025, dtype=torch.float64))
    calibrated, record = calibrate(CPRWrapper(Line(), radius=0.1, steps=5), x, y, 0.01)
    assert calibrated.rule.radius < 0.5 / 255
    assert "gray level" not in record.note


class Kinked(torch.nn.Module):
    """A line whose gradient is NaN everywhere, though its outputs are finite."""

    def forward(self, x):
        zero = (x * 0).square().sqrt()
        lead = (x - 0.5 + zero)[:, 0]
        return torch.stack([-lead, lead], dim=1)


def test_images_without_a_usable_gradient_are_noted_beside_the_rate():
    x, y = at_distances(DISTANCES)
    model = CPRWrapper(Kinked().eval(), radius=0.1)
    with pytest.warns(UserWarning, match="CPR accepts them unchecked"):
        model.predict(x)
    with pytest.warns(UserWarning, match="CPR accepts them unchecked"):
        _, record = calibrate(model, x, y, reject_rate=0.1)
    assert "CPR accepts them unchecked" in record.note
    assert record.num_rejected == 0
