"""The frozen feature map: images -> network read-outs -> random ReLU features on a grid.

Everything after the network's own output is integer arithmetic: read-outs are rounded to 16 bits,
the random matrix holds integers, and their product is exact in float64 on any device. Only the
network itself can differ in a last bit between a processor and a card.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from fcil import images as ops
from fcil.nets.backbone import Backbone, build_backbone, read_out, read_width, uses_bfloat16
from fcil.patches import Dictionary, PatchMap, check_size, width_of_patches
from fcil.patches import uses_bfloat16 as patches_use_bfloat16
from fcil.projection import UNIT, fingerprint, projection
from fcil.protocol import DataSpec, FeatureSource, World
from fcil.recent import Recent
from fcil.settings import Settings
from fcil.stats.extent import Extent, Reach
from fcil.stats.features import Array, Features, as_tensor, check_finite
from fcil.stats.grid import Grid, power_above

_SOURCE_BITS = 16
_CHUNK = 4096


def batch_of(device: torch.device) -> int:
    """Images that go through a source at a time."""
    return 128 if device.type == "cpu" else 1000


class FrozenNetwork:
    """A network in evaluation mode as a source of real vectors, one per view."""

    dtype = torch.float32

    def __init__(self, network: Backbone, spec: DataSpec, settings: Settings, name: str) -> None:
        features = settings.features
        ops.check_views(features.views)
        # Convolutions are faster with channels last, on processors too.
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network = network.eval().requires_grad_(False)
        self.spec, self.settings, self.fingerprint = spec, settings, name
        self.device = next(network.parameters()).device
        self.low = uses_bfloat16(settings.first_stage.precision, self.device)
        self.shape = (
            len(features.views),
            read_width(network.widths, features.layers, features.pool),
        )
        self.batch = batch_of(self.device)

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
            pixels = pixels.contiguous(memory_format=torch.channels_last)
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


_PATCHES = "patches."
"""Marks the patch map's tensors among those of a frozen extractor."""


@dataclass(frozen=True)
class Sources:
    """What is read of an image: a frozen network, a patch map, or both."""

    network: FrozenNetwork | None
    patches: PatchMap | None

    @property
    def all(self) -> tuple[FeatureSource, ...]:
        """Those there are, in the order of phi."""
        return tuple(source for source in (self.network, self.patches) if source is not None)

    def joined(self, width: int, seed: int, bits: int, reach: Reach) -> JoinedMap:
        """The map over what is read; `width` is that of the random layer on the network."""
        network, patches = (
            (source.fingerprint, source.shape[-1]) if source is not None else None
            for source in (self.network, self.patches)
        )
        return JoinedMap.on_grids(network, patches, width, seed, bits, reach)


def reads_network(settings: Settings) -> bool:
    """Whether a network takes part: not where patches are read and nothing made a network."""
    made = settings.first_stage.kind != "none" or settings.backbone.weights is not None
    return made or not settings.features.patches


def width_of(world: World, projection: int) -> int:
    """Length of phi, before anything is trained; refuses layers, views or patches that are not
    possible."""
    features, width = world.settings.features, 0
    if reads_network(world.settings):
        network = build_backbone(world.spec, world.settings.backbone, 0)
        read = FrozenNetwork(network, world.spec, world.settings, "").width
        width = projection or read
    if features.patches:
        check_size(world.spec.size)
        ops.check_views(features.views)
        width += width_of_patches(features.patches) + 1
    return width


def with_patches(network: Mapping[str, Tensor], dictionary: Dictionary) -> dict[str, Tensor]:
    """The tensors of an extractor that reads patches beside a network."""
    named = {f"{_PATCHES}{name}": tensor for name, tensor in dictionary.tensors().items()}
    return {**network, **named}


def network_part(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The network's tensors among those of an extractor."""
    return {name: t for name, t in tensors.items() if not name.startswith(_PATCHES)}


def frozen_sources(world: World, tensors: Mapping[str, Tensor], name: str) -> Sources:
    """What these tensors make, read as the settings say; `name` is their fingerprint."""
    return _built.of((name, world.device), lambda: _build(world, tensors, name))


def sources_fingerprint(world: World, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the tensors and of how images become vectors."""
    features, stage = world.settings.features, world.settings.first_stage
    reading: dict[str, Any] = {"spec": asdict(world.spec), "views": features.views}
    if reads_network(world.settings):
        reading |= {
            "backbone": world.settings.backbone.model_dump(exclude={"weights"}),
            "layers": features.layers,
            "pool": features.pool,
            "bfloat16": uses_bfloat16(stage.precision, world.device),
        }
    if features.patches:
        low = patches_use_bfloat16(features.precision, world.device)
        reading |= {"stride": features.stride, "patches_bfloat16": low}
    return hash_tensors(tensors, json.dumps(reading, sort_keys=True))


def hash_tensors(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """SHA-256 of named tensors."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.view(torch.uint8).numpy().data if tensor.ndim else tensor.numpy().data)
    return digest.hexdigest()


def _build(world: World, tensors: Mapping[str, Tensor], name: str) -> Sources:
    settings, network, patches = world.settings, None, None
    of_patches = {
        key.removeprefix(_PATCHES): t for key, t in tensors.items() if key.startswith(_PATCHES)
    }
    if reads_network(settings):
        backbone = build_backbone(world.spec, settings.backbone, world.seed)
        backbone.load_state_dict(network_part(tensors))
        network = FrozenNetwork(backbone.to(world.device), world.spec, settings, name)
    if of_patches:
        dictionary = Dictionary.from_tensors(of_patches)
        batch = batch_of(world.device)
        patches = PatchMap(dictionary, world.spec, settings.features, world.device, batch=batch)
    return Sources(network, patches)


# Each client's answer asks for the sources anew; building costs more than a small client's pass.
_built: Recent[tuple[str, torch.device], Sources] = Recent(2)


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


@dataclass(frozen=True)
class JoinedMap:
    """phi of everything that is read: the maps' features side by side, on one grid.

    Each map rounds to a grid of its own, ending where its own values do, so that no part is too
    coarse; side by side the integers count in the first map's step. Where patches take part a
    constant feature follows.
    """

    maps: tuple[FeatureMap, ...]
    constant: bool
    shift: int = 0
    """Real numbers only: the second map's features are multiplied by 2^shift, which is what their
    own grid does to integers."""

    @classmethod
    def on_grids(
        cls,
        network: tuple[str, int] | None,
        patches: tuple[str, int] | None,
        width: int,
        seed: int,
        bits: int,
        reach: Reach,
    ) -> JoinedMap:
        """The map over a network and patches (fingerprint and width of each, or None)."""
        maps = []
        if network is not None:
            maps.append(FeatureMap.on_grid(*network, width, seed, bits, reach))
        if patches is not None:
            ends = Reach(reach.patches, reach.patches)
            maps.append(FeatureMap.on_grid(*patches, 0, seed, bits, ends))
        return cls(tuple(maps), patches is not None, reach.mapped - reach.patches)

    @property
    def grid(self) -> Grid:
        """What the features count in."""
        return self.maps[0].grid

    @property
    def width(self) -> int:
        """Features in all."""
        return sum(part.width for part in self.maps) + self.constant

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides phi."""
        if len(self.maps) == 1 and not self.constant:
            return self.maps[0].fingerprint
        parts = [*(part.fingerprint for part in self.maps), self.constant, self.shift]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def __call__(self, vectors: Sequence[Tensor]) -> Features:
        """phi of each source's vectors."""
        found = [part(given) for part, given in zip(self.maps, vectors, strict=True)]
        columns = [part.values for part in found]
        if self.grid.real and len(columns) == 2:
            columns[1] = columns[1] * 2.0**self.shift
        if self.constant:
            one = 1.0 if self.grid.real else min(round(1 / self.grid.step), self.grid.highest)
            columns.append(columns[0].new_full((len(columns[0]), 1), one))
        values = columns[0] if len(columns) == 1 else torch.cat(columns, 1)
        return Features(values, self.grid, self.fingerprint, sum(part.clipped for part in found))

    def extent(self, vectors: Sequence[Tensor]) -> Extent:
        """How far each source's vectors and their images reach, before any clipping."""
        network = [*zip(self.maps, vectors, strict=True)]
        patches = network.pop()[1] if self.constant else None
        found = Extent.of_patches(patches) if patches is not None else Extent()
        return sum((part.extent(given) for part, given in network), found)


class MappedSources:
    """Sources and a map as one source: images -> phi, for keeping the test images' phi."""

    def __init__(self, sources: Sequence[FeatureSource], phi: JoinedMap) -> None:
        self.sources, self.phi = tuple(sources), phi
        self.fingerprint, self.batch = phi.fingerprint, min(s.batch for s in sources)
        self.shape, self.dtype = (phi.width,), phi.grid.dtype
        assert all(source.batch == self.batch for source in sources)

    def __call__(self, batch: Tensor) -> Tensor:
        """uint8 images to phi."""
        return self.phi([source(batch) for source in self.sources]).values
