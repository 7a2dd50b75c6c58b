"""What a run will work on: data, class order, tasks, and who holds what."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fcil import seeds
from fcil.data import partition, readers, tasks
from fcil.data.dataset import Dataset, Labels
from fcil.settings import Settings


@dataclass(frozen=True)
class Plan:
    """A data set dealt to tasks and clients."""

    data: Dataset
    order: tuple[int, ...]
    """Raw label of each class id."""
    tasks: tuple[tuple[int, ...], ...]
    """Class ids of each task."""
    train_labels: Labels
    """Class ids of the training images."""
    test_labels: Labels
    rows: tuple[tuple[partition.Rows, ...], ...]
    """Training images by task and client."""

    @property
    def holdings(self) -> list[list[list[int]]]:
        """Training images by task, client and class of the task."""
        return partition.holdings(self.rows, self.train_labels, self.tasks)

    @property
    def task_classes(self) -> list[list[int]]:
        """Raw labels of each task."""
        return [[self.order[c] for c in task] for task in self.tasks]

    @property
    def class_names(self) -> list[list[str]]:
        """Names of each task's classes."""
        return [[self.data.class_names[label] for label in task] for task in self.task_classes]


def plan(settings: Settings, dataset: Dataset | None = None) -> Plan:
    """Read the data (unless given) and deal it as the settings say."""
    root = Path(settings.data.root) if settings.data.root else None
    data = dataset or readers.load(settings.data.name, root, settings.data.size)
    order = seeds.class_order(settings.seed, data.classes)
    cut = tasks.class_tasks(data.classes, settings.tasks.count, settings.tasks.first_classes)
    train = tasks.positions(data.train_labels, order)
    test = tasks.positions(data.test_labels, order)
    clients = settings.clients
    rows = partition.plan(train, cut, clients.count, clients.beta, settings.seed, clients.seeding)
    return Plan(data, order, cut, train, test, rows)
