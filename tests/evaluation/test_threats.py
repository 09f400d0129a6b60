"""A threat model of somebody else's: registered, named, and used like our own."""

from __future__ import annotations

import pytest
import torch

from cpr_wrap import THREATS, ThreatModel, robustness_curve
from cpr_wrap.evaluation import audit, save_result, verify_result
from cpr_wrap.geometry import LINF, threat
from cpr_wrap.rules import Confidence
from cpr_wrap.selective import SelectiveClassifier
from tests.toys import Curved, pixels


class FirstHalf(ThreatModel):
    """The first half of the pixels may change, each by so much; the others not at all."""

    name = "first-half"

    def _allowed(self, x):
        mask = torch.zeros(x[0].numel(), dtype=torch.bool, device=x.device)
        mask[: len(mask) // 2] = True
        return mask.view(1, *x.shape[1:])

    def gauge(self, offset):
        mask = self._allowed(offset)
        outside = torch.where(offset != 0, torch.inf, 0.0).to(offset.dtype)
        return torch.where(mask, offset.abs(), outside).amax(dim=1)

    def everything(self, x):
        return 1.0

    def steepest(self, gradient):
        return gradient.sign() * self._allowed(gradient)

    def _into(self, z, x, radius):
        return torch.where(self._allowed(x), LINF._into(z, x, radius), x)

    def slack(self, x):
        return LINF.slack(x)

    def uniform_offset(self, x, radius, key):
        return LINF.uniform_offset(x, radius, key) * self._allowed(x)

    def random_offset(self, x, radius, key):
        return LINF.random_offset(x, radius, key) * self._allowed(x)


@pytest.fixture
def half():
    yield THREATS.register("first-half")(FirstHalf())
    del THREATS._entries["first-half"]


@pytest.mark.parametrize("budget", ["quick", pytest.param("standard", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:.*AutoAttack knows Linf and L2, not first-half")
def test_it_is_used_like_our_own(half, budget, tmp_path):
    model = SelectiveClassifier(Curved(outputs=4), Confidence(threshold=0.6))
    x = pixels(6)
    y = model.logits(x).argmax(dim=1)
    curve = robustness_curve(model, x, y, 0.2, norm="first-half", budget=budget)
    assert curve.records.norm == "first-half"
    assert curve.error_at(1.0) > 0
    for points in (curve.points.outer, curve.points.rejected):
        assert torch.equal(points[:, :, 1], x[:, :, 1])
        assert ((points - x).abs() <= 0.2).all()
    assert verify_result(save_result(curve, tmp_path), model).holds
    same = robustness_curve(model, x, y, 0.2, norm=half, budget=budget)
    assert same.records == curve.records
    if budget == "quick":
        audit(model, curve, num=1, black_box_num=1)


def test_a_threat_model_that_its_name_does_not_find_is_refused(half):
    model, x = SelectiveClassifier(Curved(), Confidence(threshold=0.6)), pixels(1)
    with pytest.raises(ValueError, match=r"'first-half': expected a registered one"):
        robustness_curve(model, x, torch.tensor([0]), 0.2, norm=FirstHalf())


def test_work_stored_under_another_threat_model_of_that_name_is_not_used(tmp_path, monkeypatch):
    class Scaled(FirstHalf):
        def __init__(self, scale):
            self.scale = torch.tensor(scale)

        def gauge(self, offset):
            return super().gauge(offset) * self.scale

        def _into(self, z, x, radius):
            return super()._into(z, x, radius / self.scale)

        def everything(self, x):
            return float(self.scale)

        def slack(self, x):
            return super().slack(x) * float(self.scale)

    model, x = SelectiveClassifier(Curved(), Confidence(threshold=0.6)), pixels(2)
    y = model.logits(x).argmax(dim=1)
    for scale in (1.0, 2.0):
        monkeypatch.setitem(THREATS._entries, "first-half", Scaled(scale))
        robustness_curve(model, x, y, 0.2, norm="first-half", budget="quick", store=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("name", ["linf", "LINF", "Linf", LINF])
def test_names_are_found_in_any_case(name):
    assert threat(name) is LINF
