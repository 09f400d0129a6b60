"""The rules that cut a score: their scores, verdicts and objectives by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cpr_wrap.objective import Aim, View
from cpr_wrap.rules import AcceptAll, Confidence, RectifiedConfidence, RejectClass
from cpr_wrap.rules.atrr import low_rectified_confidence, rectified_mistake
from cpr_wrap.rules.rcd import reject_class, sure_of_target
from cpr_wrap.selective import REJECT, SelectiveClassifier


class Given(nn.Module):
    """A network that answers given outputs, whatever the image."""

    def __init__(self, outputs) -> None:
        super().__init__()
        self.outputs = torch.tensor(outputs, dtype=torch.float64)
        self.eval()

    def forward(self, x):
        return self.outputs


def logs(*rows):
    """Logits whose softmax is the rows."""
    return torch.tensor(rows, dtype=torch.float64).log().tolist()


def ask(outputs, rule):
    return SelectiveClassifier(Given(outputs), rule)(torch.zeros(len(outputs), 1))


def view(outputs, num_classes):
    outputs = torch.tensor(outputs, dtype=torch.float64)
    return View(z=outputs, outputs=outputs, num_classes=num_classes, aim=AIM)


AIM = Aim(torch.tensor([0]), torch.tensor([1]))


def close(values, *expected):
    return torch.allclose(torch.cat(values), torch.tensor(expected, dtype=torch.float64))


def test_confidence():
    selection = ask(
        logs([0.8, 0.1, 0.1], [0.4, 0.3, 0.3], [0.2, 0.2, 0.6]), Confidence(threshold=0.5)
    )
    assert torch.allclose(selection.score, torch.tensor([0.8, 0.4, 0.6]).double())
    assert selection.labels.tolist() == [0, REJECT, 2]


def test_accept_all():
    selection = ask(logs([0.4, 0.6], [0.5, 0.5]), AcceptAll())
    assert selection.accepted.all()
    assert selection.labels.tolist() == [1, 0]
    with pytest.raises(ValueError, match="rule 'none' never rejects, so it takes none"):
        AcceptAll(threshold=0.5)


def test_reject_class():
    # The last column is the reject class; on a tie arg max takes the class before it.
    selection = ask([[3.0, 1.0, 2.0], [1.0, 1.5, 2.0], [0.0, 2.0, 2.0]], RejectClass())
    assert selection.score.tolist() == [1.0, -0.5, 0.0]
    assert selection.logits.shape == (3, 2)
    assert selection.labels.tolist() == [0, REJECT, 1]
    outputs = torch.tensor([[3.0, 1.0, 2.0], [1.0, 1.5, 2.0], [0.0, 2.0, 2.0]])
    assert torch.equal(selection.accepted, outputs.argmax(1) != 2)


def test_reject_class_objectives():
    seen = view(logs([0.5, 0.2, 0.3]), num_classes=2)
    assert close([term.exp() for term in reject_class.terms(seen)], 0.3)
    assert close([term.exp() for term in sure_of_target.terms(seen)], 0.2)


def test_rectified_confidence():
    half, most = 0.0, torch.tensor(0.75).double().logit().item()  # logits of A = 1/2 and 3/4
    rows = [[*logs([0.8, 0.2])[0], half], [*logs([0.2, 0.8])[0], most]]
    selection = ask(rows, RectifiedConfidence(threshold=0.5))
    assert torch.allclose(selection.score, torch.tensor([0.4, 0.6]).double())
    assert selection.labels.tolist() == [REJECT, 1]


def test_rectified_confidence_objectives():
    logit_of_a = torch.tensor(0.75).double().logit().item()
    seen = view([[*logs([0.8, 0.2])[0], logit_of_a]], num_classes=2)
    assert close([term.exp() for term in rectified_mistake.terms(seen)], 0.2, 0.75)
    distrust, doubt = low_rectified_confidence.terms(seen)
    assert close([(-distrust).exp(), (-doubt).exp()], 0.75, 0.8)


@pytest.mark.parametrize("extreme", [-200.0, 200.0])
def test_rectified_objectives_stay_finite(extreme):
    outputs = torch.tensor([[1.0, 2.0, extreme]], requires_grad=True)
    seen = View(z=outputs, outputs=outputs, num_classes=2, aim=AIM)
    for terms in (low_rectified_confidence.terms, rectified_mistake.terms):
        value = torch.stack(terms(seen)).sum()
        (gradient,) = torch.autograd.grad(value, outputs, retain_graph=True)
        assert value.isfinite()
        assert gradient.isfinite().all()
