"""Is a claim plausible? What robustness with rejection would imply for plain classifiers.

A classifier that rejects or answers right within eps can be turned into one that never rejects and
is as robust at eps / 2, however slowly (Tramèr, ICML 2022). So a curve that would imply more than
the best classifier known is more likely a weak attack than a breakthrough.
"""

from __future__ import annotations

from typing import NamedTuple

from cpr_wrap._text import eps_text, percent
from cpr_wrap.metrics.curve import RobustnessCurve


class Known(NamedTuple):
    """The best robust accuracy that is known, under AutoAttack."""

    eps: float
    accuracy: float
    source: str


BEST_KNOWN: dict[tuple[str, str], Known] = {
    ("cifar10", "Linf"): Known(8 / 255, 0.7528, "RobustBench, MeanSparse WRN-94-16"),
    ("imagenet", "Linf"): Known(4 / 255, 0.6212, "RobustBench, MeanSparse Swin-L"),
}
"""By data set and norm. A figure at a smaller eps bounds what is known at larger ones."""


def implied(curve: RobustnessCurve) -> str:
    """What the robustness at alpha = 0 implies at eps / 2; empty where nothing was ever rejected.

    Args:
        curve: The curve.

    Returns:
        One or two sentences; the second says if the claim would exceed the best known figure.
    """
    if not bool(curve.records.rejected_radius.isfinite().any()):
        return ""
    share, norm = curve.accuracy_at(0.0), curve.records.norm
    half = curve.eps / 2
    text = (
        f"{percent(share)} at alpha 0 implies a classifier without rejection, however slow, with "
        f"as much robust accuracy at {norm} {eps_text(half)} (Tramèr 2022)."
    )
    known = BEST_KNOWN.get((curve.about.dataset, norm))
    if known is None or half < known.eps * (1 - 1e-6):
        return text
    least = 1 - curve.error_interval(0.0).high
    best = f"the best known at {eps_text(known.eps)}, {percent(known.accuracy)} ({known.source})"
    if least > known.accuracy:
        return f"{text} That is more than {best}: a weak attack is the more likely explanation."
    return f"{text} That does not exceed {best}."
