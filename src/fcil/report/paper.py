"""What the paper prints (arXiv 2506.01327), as data: means in percent, no deviations are given."""

from __future__ import annotations

from typing import NamedTuple

ARXIV = "2506.01327"
TITLE = "Enhancing Federated Class-Incremental Learning via Spatial-Temporal Statistics Aggregation"


class Printed(NamedTuple):
    """One cell of Table 1 or 4; None where the paper prints no number."""

    A_avg: float | None
    A_T: float | None
    F_T: float | None


BETAS = ("beta1", "beta0.5", "beta0.1")
"""Columns of Table 1."""
LARGE = "large-first-task"
"""Table 4: 50 classes of CIFAR-100 first, then ten tasks of 5. It does not restate beta."""

_TABLE_1: dict[str, dict[str, tuple[tuple[float | None, float | None, float | None], ...]]] = {
    "cifar100": {
        "Joint": ((None, 76.74, None),) * 3,
        "Fed-EWC": ((29.23, 11.76, 73.52), (27.16, 11.56, 70.53), (21.21, 9.13, 60.79)),
        "Fed-LWF": ((44.89, 27.04, 44.60), (40.25, 24.23, 42.86), (32.28, 21.89, 38.29)),
        "MFCL": ((43.48, 26.46, 31.28), (44.00, 27.17, 27.27), (34.48, 21.96, 22.77)),
        "LANDER": ((55.01, 37.53, 28.31), (45.68, 33.09, 35.38), (42.41, 30.50, 26.42)),
        "STSA-E": ((50.29, 34.85, 9.69), (49.16, 34.57, 9.26), (44.86, 30.74, 9.92)),
        "STSA": ((50.71, 35.14, 9.81), (50.10, 34.97, 9.57), (46.19, 31.02, 9.73)),
    },
    "tiny-imagenet": {
        "Joint": ((None, 49.44, None),) * 3,
        "Fed-EWC": ((19.49, 7.68, 52.51), (19.07, 7.48, 52.04), (17.55, 6.08, 49.82)),
        "Fed-LWF": ((29.11, 17.02, 27.64), (26.91, 15.47, 28.06), (26.54, 15.16, 25.22)),
        "MFCL": ((32.58, 18.12, 24.53), (30.35, 16.43, 28.93), (28.21, 16.24, 36.33)),
        "LANDER": ((34.53, 18.21, 38.04), (30.75, 16.59, 26.77), (28.49, 16.29, 33.76)),
        "STSA-E": ((30.86, 19.94, 8.94), (30.91, 20.02, 7.66), (29.07, 18.11, 8.36)),
        "STSA": ((31.14, 20.03, 8.26), (30.77, 19.99, 6.56), (29.10, 18.18, 7.50)),
    },
}
_TABLE_4 = {
    "LANDER": (59.69, 46.19, 13.61),
    "STSA-E": (66.78, 59.36, 3.23),
    "STSA": (67.08, 59.44, 2.69),
}

RESNET18: dict[str, dict[str, dict[str, Printed]]] = {
    data: {
        method: {beta: Printed(*cell) for beta, cell in zip(BETAS, cells, strict=True)}
        for method, cells in methods.items()
    }
    for data, methods in _TABLE_1.items()
}
"""By data set, method as the paper writes it, and column; ResNet-18, T = 10, K = 5."""
for _method, _cell in _TABLE_4.items():
    RESNET18["cifar100"][_method][LARGE] = Printed(*_cell)

NAMES = {"stsa": "STSA", "stsa-e": "STSA-E", "joint": "Joint"}
"""The paper's name of our methods, where its tables have them."""
UPLOAD_MIB = {"stsa": 955.6, "stsa-e": 95.4}
"""Table 5: what a client sends after the first stage; CIFAR-100, T = 10, M = 5000, K_D = 50."""
LANDER_MIB = 79047.9
"""The same of LANDER, both directions."""


def printed(data: str, method: str, column: str) -> Printed | None:
    """The paper's cell of one of our methods.

    >>> printed("cifar100", "stsa", "beta0.5")
    Printed(A_avg=50.1, A_T=34.97, F_T=9.57)
    >>> printed("digits", "stsa", "beta0.5") is None
    True
    """
    return RESNET18.get(data, {}).get(NAMES.get(method, ""), {}).get(column)
