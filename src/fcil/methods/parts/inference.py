"""Classifying test images with a network's own head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fcil.images import normalise
from fcil.methods.parts import federated
from fcil.nets.backbone import uses_bfloat16
from fcil.protocol import Shard, World

_BATCH = 500


@dataclass(frozen=True)
class NetworkPredictor:
    """argmax over all outputs of a classifier; output i is class id i."""

    world: World
    tensors: Mapping[str, Tensor]

    @torch.no_grad()
    def __call__(self, shard: Shard) -> Tensor:
        """Class ids, one a row."""
        model = federated.load(self.world, self.tensors).eval()
        device = self.world.device
        low = uses_bfloat16(self.world.settings.first_stage.precision, device)
        answers = []
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            for batch in torch.split(shard.images, _BATCH):
                answers.append(model(normalise(batch, self.world.spec)).argmax(1))
        return torch.cat(answers)
