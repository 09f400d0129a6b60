"""What the paper's published code would spend on one image, by a formula that counted runs confirm.

N iterations, m steps of T. A climb that reads T(z) evaluates N + 2 points with m + 5 forwards and m
backwards each, and takes N gradients through both z and T(z); a plain climb costs N + 2 forwards
and N backwards. A prediction of the selective classifier costs m + 4 forwards and m backwards.
"""

from __future__ import annotations

from cpr_wrap.meter import Passes
from cpr_wrap.metrics import PAPER_ALPHAS

# The standard version's most, reached on an image that nothing breaks.
_AUTOATTACK = Passes(7864, 1910)


def published_passes(
    steps: int,
    *,
    iterations: int = 200,
    restarts: int = 5,
    step_sizes: int = 3,
    alphas: int = len(PAPER_ALPHAS),
    num_classes: int = 10,
) -> dict[str, Passes]:
    """Sample-passes for one image, attack by attack.

    Args:
        steps: Steps m of T: 20 on MNIST, 10 on SVHN and CIFAR-10.
        iterations: Iterations N of every attack.
        restarts: Random starts. LCIA and CLCIA have one more, at zero; PDIA has only one.
        step_sizes: How many step sizes are tried.
        alphas: How many alphas, zero included; nothing is searched there, but judged.
        num_classes: k.

    Example:
        >>> mnist = published_passes(steps=20)
        >>> sum((passes.forwards for passes in mnist.values()))
        2933536
        >>> sum((passes.backwards for passes in mnist.values()))
        2580730
    """
    predicted = Passes(steps + 4, steps)
    plain = Passes(iterations + 2, iterations)
    through_t = Passes((iterations + 2) * (steps + 5), (iterations + 2) * steps + 2 * iterations)
    outer = restarts * (num_classes - 1) * step_sizes
    inner = (restarts + 1) * (alphas - 1) * step_sizes
    aimed = num_classes * (alphas - 1) * step_sizes
    judged = alphas * step_sizes
    return {
        "AutoAttack": _AUTOATTACK + predicted,
        "HCMOA": _times(plain, outer) + _times(predicted, step_sizes),
        "CHCMOA": _times(through_t, outer) + _times(predicted, step_sizes),
        "LCIA": _times(plain, inner) + _times(predicted, judged),
        "CLCIA": _times(through_t, inner) + _times(predicted, judged),
        "PDIA": _times(through_t, aimed) + _times(predicted, judged),
    }


def _times(passes: Passes, count: int) -> Passes:
    return Passes(count * passes.forwards, count * passes.backwards)
