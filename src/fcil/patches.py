"""Whitened patches: a fixed map from an image to a non-negative vector, without any training.

Every 6 x 6 patch of an image is contrast-normalised, whitened and compared with F unit vectors;
what passes a threshold, on either side, is averaged over a 2 x 2 grid of positions. Whitening and
unit vectors make the `Dictionary`, which comes from public photographs, from random directions, or
from sums over the clients' patches.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fcil import images as ops
from fcil import seeds
from fcil.errors import DataError, UsageError
from fcil.protocol import DataSpec
from fcil.settings import Features
from fcil.stats.digest import digest
from fcil.stats.features import check_finite

SIDE = 6
"""Pixels along a patch."""
CONTRAST = 10.0
"""Added to a patch's variance before it is divided out, so that flat patches stay flat."""
FLOOR = 0.1
"""Added to the eigenvalues of the patches' covariance before whitening."""
THRESHOLD = 0.25
"""What a response must exceed to count; exact in every arithmetic used here."""
GRID = 2
"""Cells along either side of the grid that responses are averaged on."""

_THRESHOLD_BITS = 0x3E80
"""The threshold as bfloat16."""
_ROWS = 4096
"""Patches held at a time where sums over them are taken."""
_CACHED = 4 << 20
"""Bytes of responses at a time on a processor: what stays in its cache."""
_ON_CARD = 1 << 30
"""Bytes of responses at a time on a card."""
# Words that keep this module's draws apart within the stream "projection".
_ORDER, _DIRECTIONS, _CENTRES = 1, 2, 3


@dataclass(frozen=True, eq=False)
class Dictionary:
    """What a patch is compared with: unit vectors of whitened space, the whitening folded in."""

    mean: Tensor
    """Of contrast-normalised patches: D = channels x 6 x 6, float32."""
    kernels: Tensor
    """Filters x D, float32: a response is kernel . (patch - mean)."""

    def __post_init__(self) -> None:
        shape = tuple(self.kernels.shape)
        if len(shape) != 2 or shape[1] % SIDE**2 or self.mean.shape != shape[1:]:
            raise UsageError(
                f"A patch dictionary has kernels of filters x D and a mean of D values, D a "
                f"multiple of {SIDE**2}; these are {shape} and {tuple(self.mean.shape)}."
            )
        check_finite(self.kernels, "the patch dictionary")
        check_finite(self.mean[None], "the patch dictionary's mean")

    @classmethod
    def fold(cls, filters: Tensor, whitening: Whitening) -> Self:
        """The dictionary of directions (rows, of any length) in whitened space."""
        kernels = functional.normalize(filters.double(), dim=1) @ whitening.matrix
        return cls(whitening.mean.float(), kernels.float())

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The dictionary that `tensors` took apart."""
        return cls(tensors["mean"], tensors["kernels"])

    def tensors(self) -> dict[str, Tensor]:
        """Its parts, to be sent: clients that made it themselves could differ in a last bit."""
        return {"mean": self.mean, "kernels": self.kernels}

    @property
    def filters(self) -> int:
        """F."""
        return int(self.kernels.shape[0])

    @property
    def channels(self) -> int:
        """Of the images it is made for."""
        return int(self.kernels.shape[1]) // SIDE**2


@dataclass(frozen=True, eq=False)
class Whitening:
    """q = matrix (p - mean): a symmetric matrix that evens out the patches' covariance."""

    mean: Tensor
    matrix: Tensor

    def __call__(self, patches: Tensor) -> Tensor:
        """Whitened patches, one a row."""
        return (patches.double() - self.mean) @ self.matrix


@dataclass(frozen=True, eq=False)
class PatchSums:
    """Count, sum p and sum p p^T over contrast-normalised patches, float64."""

    count: Tensor
    total: Tensor
    products: Tensor

    @classmethod
    def of(cls, images: Tensor, stride: int = 1) -> Self:
        """The sums over all patches of uint8 images (B, C, H, W)."""
        dim = images.shape[1] * SIDE**2
        count = torch.zeros((), dtype=torch.float64, device=images.device)
        total, products = count.new_zeros(dim), count.new_zeros(dim, dim)
        for patches in _blocks(images, stride):
            count += len(patches)
            total += patches.sum(0)
            products.addmm_(patches.T, patches)
        return cls(count, total, products)

    @classmethod
    def of_patches(cls, patches: Tensor) -> Self:
        """The sums over contrast-normalised patches, one a row."""
        rows = patches.double()
        count = torch.tensor(float(len(rows)), dtype=torch.float64, device=rows.device)
        return cls(count, rows.sum(0), rows.T @ rows)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The sums that `tensors` took apart."""
        return cls(*(tensors[name].double() for name in ("count", "total", "products")))

    def tensors(self) -> dict[str, Tensor]:
        """Its parts; each may be added up on its own."""
        return {"count": self.count, "total": self.total, "products": self.products}

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.count + other.count, self.total + other.total, self.products + other.products
        )


def whitening(sums: PatchSums) -> Whitening:
    """E diag((lambda + 0.1)^-1/2) E^T from the covariance E diag(lambda) E^T of the patches."""
    if sums.count < 1:
        raise DataError(
            "There are no patches to whiten by: no client held an image when they were summed. "
            "Take `features.dictionary = public`, which needs none."
        )
    mean = sums.total / sums.count
    covariance = sums.products / sums.count - torch.outer(mean, mean)
    values, vectors = torch.linalg.eigh(covariance)
    # Rounding may leave an eigenvalue of nothing just below nothing.
    return Whitening(mean, (vectors * (values.clamp_(min=0) + FLOOR).rsqrt()) @ vectors.T)


def contrast(patches: Tensor) -> Tensor:
    """Each row less its mean, over its deviation; a flat patch becomes zeros."""
    centred = patches - patches.mean(1, keepdim=True)
    variance = centred.square().sum(1, keepdim=True) / (patches.shape[1] - 1)
    return centred / (variance + CONTRAST).sqrt()


@cache
def public_patches(channels: int) -> Tensor:
    """Contrast-normalised patches of scikit-learn's two sample photographs, float64.

    Each photograph is reduced 4 and 8 times by area means; for one channel it is grey.
    """
    if channels not in (1, 3):
        raise UsageError(
            f"The public photographs have 3 channels, or 1 as grey; these images have {channels}. "
            "Take `features.dictionary = task1-kmeans`, which learns from sums over the data."
        )
    from sklearn.datasets import load_sample_images

    found = []
    for photograph in load_sample_images().images:
        pixels = torch.from_numpy(np.array(photograph)).permute(2, 0, 1)[None].double()
        if channels == 1:
            pixels = ops.grey(pixels)
        for times in (4, 8):
            found.append(_rows(functional.avg_pool2d(pixels, times), 1))
    return contrast(torch.cat(found))


@cache
def public_whitening(channels: int) -> Whitening:
    """The whitening of the public photographs' patches."""
    return whitening(PatchSums.of_patches(public_patches(channels)))


def public_dictionary(channels: int, filters: int, seed: int) -> Dictionary:
    """Whitened patches of public photographs, the first ones of an order drawn by the seed."""
    patches = public_patches(channels)
    if filters > len(patches):
        raise UsageError(
            f"`features.patches` asks for {filters} filters, but the public photographs hold "
            f"{len(patches)} patches. Take at most so many, or `features.dictionary = gaussian`."
        )
    order = seeds.generator(seed, "projection", patches.shape[1], _ORDER).permutation(len(patches))
    white = public_whitening(channels)
    return Dictionary.fold(white(patches[torch.from_numpy(order[:filters])]), white)


def gaussian_dictionary(
    channels: int, filters: int, seed: int, sums: PatchSums | None = None
) -> Dictionary:
    """Random directions, whitened by sums over the clients' patches or by public photographs."""
    white = public_whitening(channels) if sums is None else whitening(sums)
    directions = _directions(filters, channels * SIDE**2, seed, _DIRECTIONS)
    return Dictionary.fold(directions.to(white.mean.device), white)


def initial_centres(filters: int, dim: int, seed: int) -> Tensor:
    """Random unit vectors for k-means to start from, filters x dim, float64."""
    return functional.normalize(_directions(filters, dim, seed, _CENTRES), dim=1)


@dataclass(frozen=True, eq=False)
class CentreSums:
    """What one round of spherical k-means adds up: q and -q count as the same direction."""

    totals: Tensor
    """Centres x D: sum of the centre's whitened patches, each turned to the centre's side."""
    counts: Tensor
    """Patches of each centre."""
    score: Tensor
    """Sum over patches of |q . centre|; no round lowers it."""

    @classmethod
    def of(cls, images: Tensor, white: Whitening, centres: Tensor, stride: int = 1) -> Self:
        """Each patch of uint8 images goes to the centre with the largest |q . centre|."""
        totals, counts = torch.zeros_like(centres), centres.new_zeros(len(centres))
        score = centres.new_zeros(())
        for patches in _blocks(images, stride):
            q = white(patches)
            products = q @ centres.T
            largest, nearest = products.abs().max(1)
            signs = products.gather(1, nearest[:, None]).sign()
            # A product with signs on the nearest centres: scattered sums differ by run on a card.
            member = products.zero_().scatter_(1, nearest[:, None], signs)
            totals.addmm_(member.T, q)
            counts += torch.bincount(nearest, minlength=len(centres))
            score += largest.sum()
        return cls(totals, counts, score)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The sums that `tensors` took apart."""
        return cls(tensors["totals"], tensors["counts"], tensors["score"])

    def tensors(self) -> dict[str, Tensor]:
        """Its parts; each may be added up on its own."""
        return {"totals": self.totals, "counts": self.counts, "score": self.score}

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.totals + other.totals, self.counts + other.counts, self.score + other.score
        )


def next_centres(sums: CentreSums, previous: Tensor) -> Tensor:
    """The direction of each centre's sum; a centre without a patch stays where it is."""
    directions = functional.normalize(sums.totals, dim=1)
    return torch.where((sums.totals != 0).any(1, keepdim=True), directions, previous)


def raw_patches(images: Tensor, count: int, generator: np.random.Generator) -> Tensor:
    """`count` contrast-normalised patches at random places of uint8 images, float64.

    These are pieces of the images: whoever gets them sees the images in part.
    """
    rows, columns = (_positions(side, 1) for side in images.shape[2:])
    each, top, left = (
        torch.from_numpy(generator.integers(limit, size=count)).to(images.device)
        for limit in (len(images), rows, columns)
    )
    windows = images.unfold(2, SIDE, 1).unfold(3, SIDE, 1)
    return contrast(windows[each, :, top, left].flatten(1).double())


def native_bfloat16(device: torch.device) -> bool:
    """Whether a device has instructions for products of bfloat16."""
    if device.type != "cpu":
        return device.type == "cuda"
    if platform.machine() in ("aarch64", "arm64"):
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.cpu._is_avx512_bf16_supported())


def uses_bfloat16(precision: str, device: torch.device) -> bool:
    """Whether the patch map runs in bfloat16: `auto` means where instructions exist for it."""
    return precision == "bfloat16" or (precision == "auto" and native_bfloat16(device))


class PatchMap:
    """Images to averaged responses: 2 F x 4 values in the order (sign, cell, filter).

    The vector is the mean over the views. No constant is appended.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        spec: DataSpec,
        features: Features,
        device: torch.device,
        arithmetic: torch.dtype | None = None,
        batch: int = 128,
    ) -> None:
        """`arithmetic` overrides the settings; with float64 the answer is float64 too."""
        ops.check_views(features.views)
        check_size(spec.size)
        if dictionary.channels != spec.channels:
            raise UsageError(
                f"This patch dictionary is for images of {dictionary.channels} channels; those of "
                f"{spec.name} have {spec.channels}. Make one from this data set's settings."
            )
        low = uses_bfloat16(features.precision, device)
        self.arithmetic = arithmetic or (torch.bfloat16 if low else torch.float32)
        self.dtype = torch.float64 if self.arithmetic == torch.float64 else torch.float32
        self.precision, self.device = features.precision, device
        self.views, self.stride, self.filters = features.views, features.stride, dictionary.filters
        self.shape = (width_of_patches(self.filters),)
        self.fingerprint = _fingerprint(dictionary, spec, self)
        self._minus_mean = -dictionary.mean.to(device, self.dtype).view(-1, SIDE, SIDE, 1, 1, 1)
        self._kernels = dictionary.kernels.to(device, self.arithmetic)
        self.batch = batch

    @property
    def note(self) -> str | None:
        """What a record should say about the arithmetic, if anything."""
        if self.precision != "auto" or native_bfloat16(self.device):
            return None
        return (
            "The patch map ran in float32, since this processor has no bfloat16 instructions; that "
            "takes about 3 times as long."
        )

    @torch.no_grad()
    def __call__(self, batch: Tensor) -> Tensor:
        """uint8 images (B, C, H, W) to vectors (B, width)."""
        rows, columns = batch.shape[2:]
        places = (_positions(rows, self.stride), _positions(columns, self.stride))
        weights, cells = _cells(places, self.device, self.arithmetic)
        at_once, block = self._sizes(places[0] * places[1])
        count = len(batch)
        # Groups of one size only: a product of another shape might round otherwise.
        images = torch.cat([batch, batch.new_zeros(-count % at_once, *batch.shape[1:])])
        sums = torch.zeros(
            (len(images), 2, len(cells), self.filters), dtype=self.dtype, device=self.device
        )
        room = _Room.of(self, batch.shape[1], places, at_once, weights.shape[1], block)
        for name in self.views:
            groups = torch.split(ops.view(images, name), at_once)
            for group, total in zip(groups, torch.split(sums, at_once), strict=True):
                patches = self._patches(group, room)
                parts = torch.split(total, block, dim=3)
                for kernels, part in zip(torch.split(self._kernels, block), parts, strict=True):
                    raw, lifted = room.responses(len(kernels))
                    torch.mm(patches, kernels.T, out=raw)
                    part[:, 0] += _pool(weights, _lift(raw, out=lifted), at_once)
                    part[:, 1] += _pool(weights, _lift(raw.neg_(), out=raw), at_once)
        return (sums[:count] / (cells[:, None] * len(self.views))).flatten(1)

    def _patches(self, images: Tensor, room: _Room) -> Tensor:
        """Contrast-normalised patches less the mean, one a row, and the rows of zeros."""
        pixels = images.double()  # sums of whole numbers, so nothing is rounded
        size = self._kernels.shape[1]
        first, second = (
            functional.avg_pool2d(values.sum(1), SIDE, self.stride, divisor_override=1)
            for values in (pixels, pixels * pixels)
        )
        variance = (size * second - first * first) / (size * (size - 1))
        scale, mean = (variance + CONTRAST).rsqrt(), first / size
        windows = pixels.to(self.dtype).unfold(2, SIDE, self.stride).unfold(3, SIDE, self.stride)
        patches = room.patches
        torch.sub(windows.permute(1, 4, 5, 0, 2, 3), mean.to(self.dtype), out=patches)
        torch.addcmul(self._minus_mean, patches, scale.to(self.dtype), out=patches)
        room.columns[..., : first[0].numel()] = patches.view(size, len(images), -1)
        return room.columns.view(size, -1).T

    def _sizes(self, positions: int) -> tuple[int, int]:
        """Images and filters at a time."""
        budget = _CACHED if self.device.type == "cpu" else _ON_CARD
        one = (positions + 3) * self.arithmetic.itemsize
        block = min(self.filters, max(64, budget // one))
        return max(1, budget // (one * block)), block


def check_size(side: int) -> None:
    """Refuse images that are smaller than a patch."""
    _positions(side, 1)


def width_of_patches(filters: int) -> int:
    """Length of the vector that so many filters give."""
    return 2 * filters * GRID**2


@dataclass(frozen=True, eq=False)
class _Room:
    """Memory that one call uses again for each group of images; taking it anew is slow."""

    patches: Tensor
    """C x 6 x 6 x images x rows x columns."""
    columns: Tensor
    """The same as D x images x positions, in the map's arithmetic, zero after the last position."""
    space: Tensor
    """For responses, twice."""

    @classmethod
    def of(
        cls,
        phi: PatchMap,
        channels: int,
        places: tuple[int, int],
        images: int,
        positions: int,
        block: int,
    ) -> Self:
        """Room for so many images and filters at a time."""
        size, device, dtype = channels * SIDE**2, phi.device, phi.arithmetic
        return cls(
            torch.empty((channels, SIDE, SIDE, images, *places), dtype=phi.dtype, device=device),
            torch.zeros((size, images, positions), dtype=dtype, device=device),
            torch.empty((2, images * positions * block), dtype=dtype, device=device),
        )

    def responses(self, filters: int) -> Tensor:
        """Two matrices for the responses of so many filters."""
        rows = self.columns[0].numel()
        return self.space[:, : rows * filters].view(2, rows, filters)


def _fingerprint(dictionary: Dictionary, spec: DataSpec, phi: PatchMap) -> str:
    """SHA-256 of all that decides the map."""
    parts = {
        "map": ["patches", SIDE, CONTRAST, THRESHOLD, GRID],
        "spec": asdict(spec),
        "stride": phi.stride,
        "views": phi.views,
        "arithmetic": str(phi.arithmetic),
    }
    tensors = dictionary.tensors()
    parts["shapes"] = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return digest(json.dumps(parts, sort_keys=True), list(tensors.values()), whole=False)


def _lift(responses: Tensor, out: Tensor) -> Tensor:
    """max(response, threshold): what is wanted, relu(response - threshold), plus the threshold."""
    if responses.dtype != torch.bfloat16:
        return torch.clamp(responses, min=THRESHOLD, out=out)
    # Floats from 0 up are ordered as their bits are and negative floats are negative integers, so
    # this is the same maximum, in a third of the time on a processor.
    torch.clamp(responses.view(torch.int16), min=_THRESHOLD_BITS, out=out.view(torch.int16))
    return out


def _pool(weights: Tensor, lifted: Tensor, images: int) -> Tensor:
    """Sums over cells of relu(response - threshold): images x cells x filters."""
    left = weights.expand(images, -1, -1)
    right = lifted.view(images, weights.shape[1], -1)
    if left.dtype == torch.bfloat16 and left.is_cuda:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left, right)


@lru_cache(maxsize=4)
def _cells(
    places: tuple[int, int], device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Weights of an image's positions in each cell, and how many positions a cell has.

    After the positions come three rows whose responses are zero, so that `_lift` makes them the
    threshold. Their weights are minus the cell's size, byte by byte and so exact in any arithmetic:
    within the product, whose sums have 24 bits or more, they take off what `_lift` added.
    """
    inside = [torch.zeros(GRID, side) for side in places]
    for rows in inside:
        for cell, row in enumerate(rows):
            row[cell * len(row) // GRID : -(-(cell + 1) * len(row) // GRID)] = 1
    weights = torch.einsum("ah,bw->abhw", *inside).flatten(2).flatten(0, 1)
    sizes = weights.sum(1)
    lift = [-(sizes.long() & (255 << shift)) for shift in (0, 8, 16)]
    weights = torch.cat([weights, torch.stack(lift, 1)], dim=1)
    return weights.to(device, dtype), sizes.to(device)


def _positions(side: int, stride: int) -> int:
    """Patches along a side of the image."""
    if side < SIDE:
        raise UsageError(
            f"Images of {side} pixels a side are smaller than a patch of {SIDE} x {SIDE}: the "
            "patch map cannot read them. Set `features.patches = 0`."
        )
    return (side - SIDE) // stride + 1


def _rows(images: Tensor, stride: int) -> Tensor:
    """All patches of images, one a row."""
    windows = images.unfold(2, SIDE, stride).unfold(3, SIDE, stride)
    return windows.permute(0, 2, 3, 1, 4, 5).reshape(-1, images.shape[1] * SIDE**2)


def _blocks(images: Tensor, stride: int) -> Iterator[Tensor]:
    """Contrast-normalised patches of images, float64, a bounded number at a time."""
    here = _positions(images.shape[2], stride) * _positions(images.shape[3], stride)
    for group in torch.split(images, max(1, _ROWS // here)):
        for block in torch.split(_rows(group, stride), _ROWS):
            yield contrast(block.double())


def _directions(count: int, dim: int, seed: int, word: int) -> Tensor:
    """Rows of normal deviates; more rows begin with fewer rows' ones."""
    drawn = seeds.generator(seed, "projection", dim, word).standard_normal((count, dim))
    return torch.from_numpy(drawn)
