"""The frozen feature map: images -> network read-outs -> random ReLU features on a grid.

Everything after the network's own output is integer arithmetic: read-outs are rounded to 16 bits,
the random matrix holds integers, and their product is exact in float64 on any device. Only the
network itself can differ in a last bit between a processor and a card.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from fcil import images as ops
from fcil.nets.backbone import Backbone, build_backbone, read_out, read_width, uses_bfloat16
from fcil.projection import UNIT, fingerprint, projection
from fcil.protocol import DataSpec, World
from fcil.recent import Recent
from fcil.settings import Settings
from fcil.stats.extent import Extent, Reach
from fcil.stats.features import Array, Features, as_tensor, check_finite
from fcil.stats.grid import Grid, power_above

_SOURCE_BITS = 16
_CHUNK = 4096


class FrozenNetwork:
    """A network in evaluation mode as a source of real vectors, one per view."""

    dtype = torch.float32

    def __init__(self, network: Backbone, spec: DataSpec, settings: Settings, name: str) -> None:
        features = settings.features
        ops.check_views(features.views)
        self.network = network.eval().requires_grad_(False)
        self.spec, self.settings, self.fingerprint = spec, settings, name
        self.device = next(network.parameters()).device
        self.low = uses_bfloat16(settings.first_stage.precision, self.device)
        self.shape = (
            len(features.views),
            read_width(network.widths, features.layers, features.pool),
        )
        self.batch = 128 if self.device.type == "cpu" else 1000

    @property
    def width(self) -> int:
        """Length of one view's vector."""
        return self.shape[1]

    @torch.no_grad()
    def __call__(self, batch: Tensor) -> Tensor:
        """uint8 images (B, C, H, W) to float32 vectors (B, views, width)."""
        features = self.settings.features
        vectors = []
        for view in features.views:
            pixels = ops.normalise(ops.view(batch, view), self.spec)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.low):
                maps = self.network.stages(pixels)
                vectors.append(read_out(maps, features.layers, features.pool).float())
        answer = torch.stack(vectors, 1)
        if not torch.isfinite(answer).all():
            layer = next(
                (i for i, m in enumerate(maps, 1) if not torch.isfinite(m).all()), len(maps)
            )
            check_finite(answer.flatten(1), f"the network's layer {layer}")
        return answer


def check_reading(world: World) -> None:
    """Refuse layers or views this backbone does not have, before anything is trained."""
    FrozenNetwork(
        build_backbone(world.spec, world.settings.backbone, 0), world.spec, world.settings, ""
    )


def frozen_network(world: World, tensors: Mapping[str, Tensor], name: str) -> FrozenNetwork:
    """The network that these weights make, read as the settings say; `name` is its fingerprint."""
    return _built.of((name, world.device), lambda: _build(world, tensors, name))


def network_fingerprint(world: World, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the weights and of how images become vectors."""
    features, stage = world.settings.features, world.settings.first_stage
    reading = {
        "backbone": world.settings.backbone.model_dump(exclude={"weights"}),
        "spec": asdict(world.spec),
        "layers": features.layers,
        "pool": features.pool,
        "views": features.views,
        "bfloat16": uses_bfloat16(stage.precision, world.device),
    }
    return hash_tensors(tensors, json.dumps(reading, sort_keys=True))


def hash_tensors(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """SHA-256 of named tensors."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.view(torch.uint8).numpy().data if tensor.ndim else tensor.numpy().data)
    return digest.hexdigest()


def _build(world: World, tensors: Mapping[str, Tensor], name: str) -> FrozenNetwork:
    network = build_backbone(world.spec, world.settings.backbone, world.seed)
    network.load_state_dict(dict(tensors))
    return FrozenNetwork(network.to(world.device), world.spec, world.settings, name)


# Each client's answer asks for the network anew; building it costs more than a small client's pass.
_built: Recent[tuple[str, torch.device], FrozenNetwork] = Recent(2)


@dataclass(frozen=True)
class FeatureMap:
    """phi: vectors of a source -> mean over views of ReLU(v R), on a grid.

    Use it on its own with any features: `FeatureMap.for_features(512, 2000, seed=0, largest=8.0)`.
    """

    source: str
    """Fingerprint of where the vectors come from."""
    inputs: int
    """Length of a vector."""
    width: int
    """M; equal to `inputs` when there is no projection."""
    seed: int
    projected: bool
    source_grid: Grid
    """Where vectors are rounded to before the projection; real without one."""
    grid: Grid
    """Where phi is rounded to; real = no rounding at all, as published."""

    @classmethod
    def for_features(
        cls,
        inputs: int,
        width: int = 0,
        *,
        seed: int = 0,
        largest: float,
        bits: int = 8,
        name: str = "given",
    ) -> FeatureMap:
        """A map for a user's own features, none of which exceeds `largest` in size.

        `width = 0` uses the features as they are. All clients must use the same values.
        """
        signed = width == 0
        # A row of R has length sqrt(inputs); largest * sqrt(inputs) bounds typical products.
        reach = largest * inputs**0.5 if width else largest
        return cls.on_grid(
            name,
            inputs,
            width,
            seed,
            bits,
            Reach(power_above(largest), power_above(reach), signed),
        )

    @classmethod
    def on_grid(
        cls, source: str, inputs: int, width: int, seed: int, bits: int, reach: Reach
    ) -> FeatureMap:
        """The map whose grids end where a reach says; `width = 0` = no projection."""
        source_bits = _SOURCE_BITS if width and bits else 0
        return cls(
            source=source,
            inputs=inputs,
            width=width or inputs,
            seed=seed,
            projected=width > 0,
            source_grid=Grid.ending(reach.source, source_bits, signed=True),
            grid=Grid.ending(reach.mapped, bits, signed=reach.signed and width == 0),
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides phi, the random matrix's bits included."""
        parts = asdict(self)
        if self.projected:
            parts["matrix"] = fingerprint(self.inputs, self.width, self.seed)
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def __call__(self, vectors: Array) -> Features:
        """phi of vectors (rows x inputs, or rows x views x inputs)."""
        pieces, clipped = [], 0
        for piece in torch.split(as_tensor(vectors), _CHUNK):
            sums, views, lost = self._raw(piece)
            if self.grid.real:
                pieces.append(sums * self._unit / views)
            else:
                rounded, more = self.grid.round(sums * (self._unit / self.grid.step) / views)
                pieces.append(rounded)
                clipped += lost + more
        values = torch.cat(pieces) if pieces else torch.empty((0, self.width))
        return Features(values, self.grid, self.fingerprint, clipped)

    def extent(self, vectors: Tensor) -> Extent:
        """How far these vectors and their images under this map reach, before any clipping."""
        total = Extent()
        for piece in torch.split(vectors, _CHUNK):
            sums, views, _ = self._raw(piece)
            total = total + Extent.of(piece, sums * (self._unit / views))
        return total

    @property
    def _unit(self) -> float:
        """What one unit of `_raw` is worth."""
        return (UNIT if self.projected else 1.0) * self.source_grid.step

    def _raw(self, vectors: Tensor) -> tuple[Tensor, int, int]:
        """Sum over views of ReLU(v R) in units of `_unit`, the number of views, and of clips."""
        if vectors.ndim == 2:
            vectors = vectors[:, None]
        check_finite(vectors.flatten(1), "the features given")
        inputs, views, clipped = vectors.double(), vectors.shape[1], 0
        if not self.source_grid.real:
            rounded, clipped = self.source_grid.round(inputs / self.source_grid.step)
            inputs = rounded.double()
        if not self.projected:
            return inputs.sum(1), views, 0
        R = _matrix(self.inputs, self.width, self.seed, str(vectors.device))
        total = (inputs[:, 0] @ R).relu_()
        for view in range(1, views):
            total += (inputs[:, view] @ R).relu_()
        return total, views, clipped


@lru_cache(maxsize=2)
def _matrix(inputs: int, width: int, seed: int, device: str) -> Tensor:
    return projection(inputs, width, seed).to(device).double()


class MappedNetwork:
    """A network and a map as one source: images -> phi, for keeping the test images' phi."""

    def __init__(self, network: FrozenNetwork, phi: FeatureMap) -> None:
        self.network, self.phi = network, phi
        self.fingerprint, self.batch = phi.fingerprint, network.batch
        self.shape, self.dtype = (phi.width,), phi.grid.dtype

    def __call__(self, batch: Tensor) -> Tensor:
        """uint8 images to phi."""
        return self.phi(self.network(batch)).values
