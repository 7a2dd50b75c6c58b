"""What one holder may see: rows of an image source, and the features made of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fcil.errors import NumericalError
from fcil.protocol import FeatureSource
from fcil.recent import Recent


class ImageSource:
    """Images and labels in memory, and the frozen features already made of them.

    A frozen source sees every image once: its answers are kept by fingerprint and row.
    """

    def __init__(self, images: Tensor, labels: Tensor, kept_sources: int = 2) -> None:
        self.images, self.labels = images, labels
        self._features: Recent[str, tuple[Tensor, Tensor]] = Recent(kept_sources)

    def __len__(self) -> int:
        return len(self.labels)

    def features(self, source: FeatureSource, rows: Tensor, together: Tensor) -> Tensor:
        """The features of some rows; `together` are the rows worth computing in one go."""
        values, known = self._kept(source)
        if not bool(known[rows].all()):
            missing = together[~known[together]]
            batches = torch.split(missing, source.batch)
            for number, batch in enumerate(batches, 1):
                try:
                    values[batch] = source(self._padded(batch, source.batch))[: len(batch)]
                except NumericalError as why:
                    raise NumericalError(f"Batch {number} of {len(batches)}: {why}") from why
                known[batch] = True
        return values[rows]

    def _kept(self, source: FeatureSource) -> tuple[Tensor, Tensor]:
        """A source's answers so far, and which rows have one."""

        def none() -> tuple[Tensor, Tensor]:
            device = self.images.device
            values = torch.empty((len(self), *source.shape), dtype=source.dtype, device=device)
            return values, torch.zeros(len(self), dtype=torch.bool, device=device)

        return self._features.of(source.fingerprint, none)

    def _padded(self, rows: Tensor, batch: int) -> Tensor:
        """Images of a full batch, the first one repeated: kernels chosen by the batch's shape then
        never differ, so a row's features do not depend on which rows it is computed with."""
        return self.images[torch.cat([rows, rows[:1].expand(batch - len(rows))])]


@dataclass(frozen=True)
class Rows:
    """A shard: some rows of a source (implements `protocol.Shard`)."""

    source: ImageSource
    rows: Tensor
    together: Tensor
    """Rows that will be asked for soon as well: a simulation extracts a task's images at once."""

    @property
    def images(self) -> Tensor:
        """Pixels, uint8."""
        return self.source.images[self.rows]

    @property
    def labels(self) -> Tensor:
        """Class ids."""
        return self.source.labels[self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def features(self, source: FeatureSource) -> Tensor:
        """Features of these rows."""
        return self.source.features(source, self.rows, self.together)
