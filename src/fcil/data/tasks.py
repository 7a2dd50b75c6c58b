"""Classes in a run's order, cut into tasks.

A class id is a position in the class order (`fcil.seeds.class_order`), so tasks are consecutive
blocks of ids whatever the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from fcil.data.dataset import Labels
from fcil.errors import UsageError


def class_tasks(
    classes: int, count: int, first_classes: int | None = None
) -> tuple[tuple[int, ...], ...]:
    """Class ids of each task: `count` equal blocks, or a first one of its own size.

    `count` includes the first task: 50 classes and then ten tasks of 5 are 11 tasks.

    >>> class_tasks(6, 3)
    ((0, 1), (2, 3), (4, 5))
    >>> [len(task) for task in class_tasks(100, 11, first_classes=50)]
    [50, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5]
    """
    if count < 1 or classes < 1:
        raise UsageError(f"{classes} classes cannot be cut into {count} tasks.")
    if first_classes is None:
        if classes % count:
            raise UsageError(
                f"{classes} classes cannot be cut into {count} equal tasks. tasks.count may be "
                f"{_listed(_divisors(classes))}; or set tasks.first_classes to the size of a "
                "larger first task."
            )
        first_classes = classes // count
    rest, others = classes - first_classes, count - 1
    if first_classes < 1 or rest < others or (rest > 0 and others == 0):
        raise UsageError(
            f"A first task of {first_classes} classes and {others} more tasks cannot be cut from "
            f"{classes} classes: each task needs a class and each class a task. tasks.count counts "
            "the first task too."
        )
    if others and rest % others:
        raise UsageError(
            f"After a first task of {first_classes} classes, the other {rest} cannot be cut into "
            f"{others} equal tasks. tasks.count, which counts the first task too, may be "
            f"{_listed([n + 1 for n in _divisors(rest)])}."
        )
    size = rest // others if others else 0
    borders = [0, *(first_classes + size * task for task in range(count))]
    return tuple(tuple(range(start, end)) for start, end in pairwise(borders))


def positions(labels: Labels, order: Sequence[int]) -> Labels:
    """Class ids of raw labels: the place of each in the class order.

    >>> positions(np.array([2, 0, 1]), order=(1, 2, 0))
    array([1, 2, 0])
    """
    place = np.empty(len(order), dtype=np.int64)
    place[np.asarray(order)] = np.arange(len(order))
    return place[labels]


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _listed(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last
