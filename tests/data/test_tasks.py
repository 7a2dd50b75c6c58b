"""Tasks are consecutive blocks that hold every class once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fcil.data.tasks import class_tasks, positions
from fcil.errors import UsageError
from fcil.seeds import class_order


@given(st.integers(1, 30), st.integers(1, 12))
def test_equal_tasks_hold_every_class_once(size: int, count: int) -> None:
    tasks = class_tasks(size * count, count)
    assert [len(task) for task in tasks] == [size] * count
    assert [c for task in tasks for c in task] == list(range(size * count))


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 12))
def test_a_first_task_of_its_own_size(first: int, size: int, others: int) -> None:
    tasks = class_tasks(first + size * others, others + 1, first)
    assert [len(task) for task in tasks] == [first] + [size] * others
    assert [c for task in tasks for c in task] == list(range(first + size * others))


def test_one_task_holds_all() -> None:
    assert class_tasks(7, 1) == class_tasks(7, 1, 7) == (tuple(range(7)),)


@pytest.mark.parametrize(
    ("classes", "count", "first", "said"),
    [
        (100, 7, None, "1, 2, 4, 5, 10, 20, 25, 50 or 100"),
        (10, 20, None, "1, 2, 5 or 10"),
        (100, 0, None, "cannot be cut"),
        (100, 10, 50, "may be 2, 3, 6, 11, 26 or 51"),
        (100, 1, 50, "each class a task"),
        (100, 3, 100, "each task needs a class"),
        (100, 3, 101, "each task needs a class"),
        (100, 3, 0, "first task of 0"),
    ],
)
def test_what_cannot_be_cut(classes: int, count: int, first: int | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        class_tasks(classes, count, first)


@pytest.mark.parametrize(
    ("classes", "begins"),
    [
        (100, (26, 86, 2, 55, 75, 93, 16, 73, 54, 95, 53, 92, 78, 13, 7, 30, 22, 24, 33, 8)),
        (200, (18, 170, 107, 98, 177, 182, 5, 146, 12, 152)),
    ],
)
def test_labels_become_places_in_the_published_order(classes: int, begins: tuple[int, ...]) -> None:
    ids = positions(np.array(begins), class_order(0, classes))
    assert ids.dtype == np.int64
    assert ids.tolist() == list(range(len(begins)))


@given(st.integers(0, 2**32 - 1), st.integers(1, 50))
def test_places_undo_the_order(seed: int, classes: int) -> None:
    order = class_order(seed, classes)
    assert positions(np.array(order), order).tolist() == list(range(classes))
