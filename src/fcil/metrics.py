"""Accuracies and forgetting as pure functions of the task matrix.

The matrix is lower triangular, in percent: row t holds the accuracies after task t on the test
images of tasks 0..t, predicting among all classes seen so far. A row of `None` means the method
had no classifier at that time (the joint bound before the last task).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

Row = Sequence[float | None]
Matrix = Sequence[Row]


def curve(matrix: Matrix) -> list[float | None]:
    """Mean over the tasks seen so far, after each task.

    >>> curve([[90.0], [80.0, 70.0]])
    [90.0, 75.0]
    """
    return [_mean(row) for row in matrix]


def average_accuracy(matrix: Matrix) -> float | None:
    """A_avg: the mean over stages of the mean over the tasks seen so far.

    >>> average_accuracy([[90.0], [80.0, 70.0]])
    82.5
    """
    return _mean(curve(matrix))


def final_accuracy(matrix: Matrix) -> float | None:
    """A_T: the mean over all tasks after the last one.

    >>> final_accuracy([[90.0], [80.0, 70.0]])
    75.0
    """
    return _mean(matrix[-1]) if matrix else None


def forgetting(matrix: Matrix) -> float | None:
    """F_T: best accuracy a task had at an earlier stage than the last, minus its last one.

    Averaged over all tasks but the last; negative where a task got better in the end.

    >>> forgetting([[90.0], [85.0, 70.0], [95.0, 50.0, 80.0]])
    7.5
    """
    return _forgetting(matrix, lambda column: column[:-1])


def forgetting_all_stages(matrix: Matrix) -> float | None:
    """F_T_all: as `forgetting`, with the last stage among the candidates; never negative.

    >>> forgetting_all_stages([[90.0], [85.0, 70.0], [95.0, 50.0, 80.0]])
    10.0
    """
    return _forgetting(matrix, lambda column: column)


def _forgetting(matrix: Matrix, candidates: Callable[[list[float]], list[float]]) -> float | None:
    stages = len(matrix)
    if stages < 2 or any(value is None for row in matrix for value in row):
        return None
    drops = []
    for task in range(stages - 1):
        column = [value for row in matrix[task:] if (value := row[task]) is not None]
        drops.append(max(candidates(column)) - column[-1])
    return fmean(drops)


def _mean(values: Row) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None
