"""The paper's own figures, as it prints them.

From "Stratified Adversarial Robustness with Rejection" (Chen et al., 2023). Each table says which
one of the paper it is. Losses are shares; what the paper prints in percent is in percent here.
"""

from __future__ import annotations

from collections.abc import Mapping

Row = Mapping[str, float]
Figures = Mapping[str, Row]

SEEN, UNSEEN = "seen", "unseen"


def _rows(names: tuple[str, ...], text: str) -> dict[str, Row]:
    """Read lines of a method and its figures, in the order of `names`."""
    table: dict[str, Row] = {}
    for line in text.strip().splitlines():
        method, *figures = line.split()
        table[method] = dict(zip(names, map(float, figures), strict=True))
    return table


TABLE_1 = ("step:0", "step:0.05", "step:0.1", "ramp:2", "ramp:4")
ADDITIONAL = ("step:0.01", "step:0.15", "step:0.2", "ramp:1", "ramp:3")

TABLES = {
    "table1": "Table 1",
    "additional": "the appendix's table of additional rejection losses",
    "traditional": "the appendix's table of traditional metrics",
    "attacks": "Table 2",
    "ccat": "the appendix's table of attacks on CCAT",
}
"""Which table of the paper each set of figures is."""

_SEEN_1 = _rows(
    TABLE_1,
    """
    AT+CR      0.084 0.085 0.085 0.097 0.087
    TRADES+CR  0.060 0.061 0.061 0.075 0.065
    CCAT       0.168 0.926 1.000 0.945 0.894
    RCD        0.135 0.135 0.135 0.135 0.135
    ATRR       0.088 0.088 0.089 0.107 0.095
    AT+CPR     0.039 0.039 0.040 0.133 0.059
    TRADES+CPR 0.042 0.042 0.042 0.130 0.058
    """,
)
_UNSEEN_1 = _rows(
    TABLE_1,
    """
    AT+CR      1.000 1.000 1.000 1.000 1.000
    TRADES+CR  1.000 1.000 1.000 1.000 1.000
    CCAT       0.245 0.994 1.000 0.955 0.914
    RCD        1.000 1.000 1.000 1.000 1.000
    ATRR       1.000 1.000 1.000 1.000 1.000
    AT+CPR     0.096 0.097 0.098 0.187 0.116
    TRADES+CPR 0.133 0.133 0.133 0.208 0.145
    """,
)
_SEEN_MORE = _rows(
    ADDITIONAL,
    """
    AT+CR      0.084 0.086 0.086 0.117 0.090
    TRADES+CR  0.060 0.063 0.063 0.095 0.068
    CCAT       0.172 1.000 1.000 0.972 0.919
    RCD        0.135 0.135 0.135 0.135 0.135
    ATRR       0.088 0.090 0.093 0.131 0.099
    AT+CPR     0.039 0.042 0.043 0.295 0.080
    TRADES+CPR 0.042 0.042 0.043 0.292 0.078
    """,
)
_UNSEEN_MORE = _rows(
    ADDITIONAL,
    """
    AT+CR      1.000 1.000 1.000 1.000 1.000
    TRADES+CR  1.000 1.000 1.000 1.000 1.000
    CCAT       0.252 1.000 1.000 0.977 0.934
    RCD        1.000 1.000 1.000 1.000 1.000
    ATRR       1.000 1.000 1.000 1.000 1.000
    AT+CPR     0.096 0.098 0.099 0.340 0.136
    TRADES+CPR 0.133 0.133 0.133 0.353 0.162
    """,
)

LOSSES: Mapping[str, Figures] = {
    SEEN: {method: {**row, **_SEEN_MORE[method]} for method, row in _SEEN_1.items()},
    UNSEEN: {method: {**row, **_UNSEEN_MORE[method]} for method, row in _UNSEEN_1.items()},
}
"""Total robust losses on MNIST by budget, method and loss: Table 1 and the additional table."""

TRADITIONAL: Figures = _rows(
    ("accuracy_with_rejection", "rejection_rate", "f1_like", SEEN, UNSEEN),
    """
    AT         98.81 0.00 99.40 84.70 0.00
    AT+CR      99.55 1.79 98.87 91.60 0.00
    TRADES     99.07 0.00 99.53 89.30 0.00
    TRADES+CR  99.67 1.86 98.90 94.00 0.00
    CCAT       99.90 1.82 99.03 83.20 75.50
    RCD        99.02 0.00 99.51 86.50 0.00
    ATRR       99.62 2.51 98.54 91.20 0.00
    AT+CPR     99.60 1.99 98.80 96.10 90.40
    TRADES+CPR 99.63 1.63 98.99 95.80 86.70
    """,
)
"""Traditional metrics on MNIST in percent; robust accuracy with detection under both budgets."""

ATTACKS: Figures = _rows(
    ("AutoAttack", "HCMOA", "CHCMOA", "LCIA", "CLCIA", "PDIA"),
    """
    AT+CPR     97.60 97.80 96.10 50.90 12.30 65.80
    TRADES+CPR 98.10 98.40 95.80  7.60  5.10  0.40
    """,
)
"""Robustness in percent that each attack alone leaves: outer at alpha 0, inner at alpha 1."""

CIFAR10_ATTACKS: Figures = _rows(
    ("AutoAttack", "HCMOA", "CHCMOA", "LCIA", "CLCIA", "PDIA"),
    "AT+CPR 60.70 57.50 57.40 44.40 48.30 48.50",
)
"""The same on CIFAR-10."""

CCAT: Figures = _rows(
    (SEEN, UNSEEN),
    """
    PGD-backtracking 88.50 85.30
    HCMOA            83.20 75.50
    """,
)
"""CCAT's robustness with detection in percent, by attack and budget."""

CIFAR10_LOSSES: Mapping[str, Figures] = {
    SEEN: _rows(
        (*TABLE_1, *ADDITIONAL),
        """
        AT+CR  0.500 0.501 0.501 0.507 0.503  0.500 0.501 0.501 0.515 0.504
        AT+CPR 0.433 0.433 0.433 0.443 0.435  0.433 0.433 0.433 0.464 0.437
        """,
    ),
    UNSEEN: _rows(
        (*TABLE_1, *ADDITIONAL),
        """
        AT+CR  0.895 0.895 0.895 0.895 0.895  0.895 0.895 0.895 0.895 0.895
        AT+CPR 0.829 0.829 0.829 0.836 0.830  0.829 0.829 0.829 0.849 0.832
        """,
    ),
}
"""Total robust losses on CIFAR-10, of the methods that we evaluate there; the same tables."""

CIFAR10_TRADITIONAL: Figures = _rows(
    ("accuracy_with_rejection", "rejection_rate", "f1_like", SEEN, UNSEEN),
    """
    AT     84.84 0.00  91.80 47.60 10.80
    AT+CR  90.55 13.00 88.74 50.00 10.50
    AT+CPR 89.05 9.57  89.74 56.70 17.10
    """,
)
"""Traditional metrics on CIFAR-10 in percent, of the methods that we evaluate there."""

CCAT_REJECTED_WITHIN = 0.02
CCAT_REJECTED_SHARE = 0.993
"""The introduction, for eps 0.4: near this share of MNIST test points CCAT rejects something."""

RADIUS, STEPS, STEP_SIZE = 0.1, 20, 0.01
"""CPR on MNIST."""

CIFAR10_RADIUS, CIFAR10_STEPS, CIFAR10_STEP_SIZE = 0.0055, 10, 0.001
"""CPR on CIFAR-10."""

REJECT_RATE, CIFAR10_REJECT_RATE = 0.01, 0.05
"""Share of the correctly classified validation images that rules are set to reject."""

RADII, STEP_COUNTS = (0.05, 0.1, 0.15, 0.2), (10, 20, 30)
"""Hyper-parameters tried on MNIST."""

EPS: Mapping[str, float] = {SEEN: 0.3, UNSEEN: 0.4}
CIFAR10_EPS: Mapping[str, float] = {SEEN: 8 / 255, UNSEEN: 16 / 255}

IMAGES = 1000
"""Test images that the paper attacks, of each data set."""

EPOCHS, TRAINING_STEPS = 100, 40
"""Training on MNIST: epochs, and steps of the attack, of AT, CCAT, RCD and ATRR."""
