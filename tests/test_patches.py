"""The patch map against a matrix of all patches in float64, and what its sums promise."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fcil import images as ops
from fcil import patches as module
from fcil import seeds
from fcil.errors import DataError, NumericalError, UnknownName, UsageError
from fcil.patches import (
    CentreSums,
    Dictionary,
    PatchMap,
    PatchSums,
    contrast,
    gaussian_dictionary,
    initial_centres,
    next_centres,
    public_dictionary,
    public_patches,
    public_whitening,
    raw_patches,
    uses_bfloat16,
    whitening,
)
from fcil.protocol import DataSpec
from fcil.settings import Features

CPU = torch.device("cpu")


def spec(channels: int, size: int) -> DataSpec:
    return DataSpec("toy", channels, size, (0.5,) * channels, (0.2,) * channels, 3)


def random_images(count: int, channels: int, rows: int, columns: int, seed: int = 0) -> Tensor:
    """Smooth pictures with noise on top, so that patches differ in contrast and direction."""
    random = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, channels, 4, 4, generator=random) * 255
    smooth = functional.interpolate(coarse, (rows, columns), mode="bilinear")
    noise = torch.randn(smooth.shape, generator=random) * 12
    return (smooth + noise).clamp(0, 255).to(torch.uint8)


def every_patch(image: Tensor, stride: int = 1) -> tuple[np.ndarray, int, int]:
    """Contrast-normalised patches of one image, cut out one by one."""
    pixels = image.numpy().astype(np.float64)
    tops = range(0, pixels.shape[1] - 5, stride)
    lefts = range(0, pixels.shape[2] - 5, stride)
    rows = []
    for top in tops:
        for left in lefts:
            patch = pixels[:, top : top + 6, left : left + 6].ravel()
            rows.append((patch - patch.mean()) / np.sqrt(patch.var(ddof=1) + 10))
    return np.array(rows), len(tops), len(lefts)


def by_patches(image: Tensor, filters: Tensor, white: module.Whitening, stride: int) -> np.ndarray:
    """One image's vector by the definition: sign x filter x 2 x 2 as a network would pool it."""
    rows, down, across = every_patch(image, stride)
    q = (rows - white.mean.numpy()) @ white.matrix.numpy()
    w = (filters / filters.norm(dim=1, keepdim=True)).numpy()
    r = q @ w.T
    both = np.concatenate([np.maximum(r - 0.25, 0), np.maximum(-r - 0.25, 0)], axis=1)
    maps = torch.from_numpy(both.T.reshape(1, -1, down, across))
    return functional.adaptive_avg_pool2d(maps, 2).view(2, len(w), 4).numpy()


def vectors(phi: PatchMap, images: Tensor) -> Tensor:
    """The map's answer as images x sign x filter x cell."""
    return phi(images).view(len(images), 2, 4, phi.filters).transpose(2, 3)


def made(
    channels: int, rows: int, columns: int, filters: int, **features: object
) -> tuple[PatchMap, Tensor, module.Whitening]:
    """A map in float64 whose dictionary is not rounded, with its filters and whitening."""
    white = whitening(PatchSums.of(random_images(6, channels, rows, columns, seed=9)))
    drawn = torch.randn(filters, channels * 36, generator=torch.Generator().manual_seed(1)).double()
    exact = Dictionary(white.mean, torch.nn.functional.normalize(drawn, dim=1) @ white.matrix)
    settings = Features(patches=filters, **features)  # type: ignore[arg-type]
    return PatchMap(exact, spec(channels, rows), settings, CPU, torch.float64), drawn, white


@pytest.mark.parametrize(
    ("channels", "rows", "columns", "stride"),
    [(3, 32, 32, 1), (3, 32, 32, 2), (1, 8, 8, 1), (1, 6, 6, 1), (2, 9, 14, 1), (3, 23, 11, 3)],
)
def test_equals_the_matrix_of_all_patches(
    channels: int, rows: int, columns: int, stride: int
) -> None:
    phi, filters, white = made(channels, rows, columns, 7, stride=stride)
    images = random_images(3, channels, rows, columns)
    expected = np.stack([by_patches(image, filters, white, stride) for image in images])
    found = vectors(phi, images)
    assert phi.shape == (2 * 7 * 4,) and found.dtype == phi.dtype == torch.float64
    assert np.abs(found.numpy() - expected).max() < 1e-10
    assert expected.max() > 0.1


def test_filters_in_blocks_and_images_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little fits at a time, also where the last group or block is a smaller one."""
    phi, filters, white = made(1, 16, 16, 150)
    images = random_images(5, 1, 16, 16)
    monkeypatch.setattr(module, "_CACHED", 1)
    assert phi._sizes(121) == (1, 64)
    expected = np.stack([by_patches(image, filters, white, 1) for image in images])
    assert np.abs(vectors(phi, images).numpy() - expected).max() < 1e-10
    monkeypatch.setattr(module, "_CACHED", 150 * 124 * 8 * 3)
    assert phi._sizes(121) == (3, 150)
    assert np.abs(vectors(phi, images).numpy() - expected).max() < 1e-10


def test_views_are_averaged_in_phi() -> None:
    views = ("plain", "mirror", "shift2")
    together, _, _ = made(3, 12, 12, 5, views=views)
    images = random_images(4, 3, 12, 12)
    alone, _, _ = made(3, 12, 12, 5)
    mean = torch.stack([alone(ops.view(images, name)) for name in views]).mean(0)
    assert (together(images) - mean).abs().max() < 1e-12


def test_a_mirrored_image_gives_the_mirrored_grid() -> None:
    """For the mirrored filters; and with both views an image and its mirror are the same."""
    phi, _, _ = made(3, 12, 12, 5)
    both, _, _ = made(3, 12, 12, 5, views=("plain", "mirror"))
    parts = (-phi._minus_mean.flatten(), phi._kernels)
    turned = Dictionary(*(t.view(-1, 3, 6, 6).flip(3).reshape(t.shape) for t in parts))
    mirrored = PatchMap(turned, spec(3, 12), Features(), CPU, torch.float64)
    images = random_images(4, 3, 12, 12)
    there = vectors(phi, images).view(4, 2, 5, 2, 2)
    back = vectors(mirrored, images.flip(3)).view(4, 2, 5, 2, 2)
    assert (there.flip(4) - back).abs().max() < 1e-12
    assert (both(images) - both(images.flip(3))).abs().max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_flat_images_are_finite_and_nothing_is_negative(dtype: torch.dtype) -> None:
    dictionary = public_dictionary(3, 32, 0)
    phi = PatchMap(dictionary, spec(3, 32), Features(), CPU, dtype)
    values = torch.tensor([0, 1, 77, 255], dtype=torch.uint8)
    flat = phi(values[:, None, None, None].expand(4, 3, 32, 32))
    # Contrast of a flat patch is 0, so what is left is the mean's own response, four times.
    r = -(dictionary.kernels.double() @ dictionary.mean.double())
    expected = torch.cat([(r - 0.25).relu().repeat(4), (-r - 0.25).relu().repeat(4)])
    assert torch.isfinite(flat).all() and (flat == flat[0]).all()
    assert (flat[0].double() - expected).abs().max() < 0.01
    noisy = random_images(8, 3, 32, 32)
    assert (phi(noisy) >= 0).all()
    noisy[:, :, 16:] = 200
    assert torch.isfinite(phi(noisy)).all()


def test_responses_below_the_threshold_leave_exactly_nothing() -> None:
    """The threshold goes in and out of the sums without a trace, also where cells are large."""
    weak = Dictionary(torch.zeros(36), torch.full((64, 36), 1e-4))
    image = random_images(1, 1, 150, 150)
    for dtype in (torch.float32, torch.bfloat16):
        assert not PatchMap(weak, spec(1, 150), Features(), CPU, dtype)(image).any()


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 4e-3)], ids=["float32", "bfloat16"]
)
def test_short_arithmetic_is_close(dtype: torch.dtype, bound: float) -> None:
    dictionary = public_dictionary(3, 64, 0)
    images = random_images(8, 3, 32, 32)
    exact = PatchMap(dictionary, spec(3, 32), Features(), CPU, torch.float64)(images)
    short = PatchMap(dictionary, spec(3, 32), Features(), CPU, dtype)(images)
    assert short.dtype == torch.float32
    error = float((short - exact).norm() / exact.norm())
    assert 0 < error < bound


def test_the_integer_form_of_the_threshold() -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    finite = every[torch.isfinite(every)]
    assert len(finite) == 2**16 - 2**8
    assert torch.equal(
        module._lift(finite, torch.empty_like(finite)), finite.clamp(min=module.THRESHOLD)
    )


def test_an_image_does_not_depend_on_its_neighbours() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        phi = PatchMap(public_dictionary(3, 48, 0), spec(3, 32), Features(), CPU, dtype)
        images = random_images(8, 3, 32, 32)
        other = random_images(8, 3, 32, 32, seed=5)
        other[3] = images[3]
        assert torch.equal(phi(images)[3], phi(other)[3])


PROGRAM = """
import hashlib, sys, torch
from fcil.patches import PatchMap, public_dictionary
from fcil.protocol import DataSpec
from fcil.settings import Features
torch.set_num_threads(1)
images = torch.arange(2 * 32 * 32, dtype=torch.int64).mul(2654435761).remainder(253)
images = images.to(torch.uint8).view(2, 1, 32, 32)
spec = DataSpec("toy", 1, 32, (0.5,), (0.2,), 3)
phi = PatchMap(public_dictionary(1, 32, 4), spec, Features(), torch.device("cpu"))
print(phi.fingerprint, hashlib.sha256(phi(images).numpy().data).hexdigest())
"""


def test_the_same_bits_in_two_processes() -> None:
    answers = set()
    for salt in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": salt, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        answers.add(done.stdout)
    assert len(answers) == 1 and len(answers.pop().split()) == 2


def test_sums_of_parts_are_the_pooled_sums() -> None:
    images = random_images(30, 3, 16, 16)
    total = PatchSums.of(images[:7])
    for part in (images[7:8], images[8:8], images[8:21], images[21:]):
        total = total + PatchSums.from_tensors(PatchSums.of(part).tensors())
    rows = np.concatenate([every_patch(image)[0] for image in images])
    assert int(total.count) == len(rows)
    assert np.abs(total.total.numpy() - rows.sum(0)).max() < 1e-12 * len(rows)
    mean = rows.mean(0)
    covariance = total.products / total.count - torch.outer(*[total.total / total.count] * 2)
    pooled = (rows - mean).T @ (rows - mean) / len(rows)
    assert np.abs(covariance.numpy() - pooled).max() < 1e-12


def test_few_patches_are_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    images = random_images(9, 1, 16, 16)
    whole = PatchSums.of(images)
    monkeypatch.setattr(module, "_ROWS", 50)
    assert max(map(len, module._blocks(images, 1))) == 50
    again = PatchSums.of(images)
    assert torch.allclose(whole.products, again.products, rtol=1e-12, atol=1e-9)
    assert whole.count == again.count == 9 * 11 * 11


def test_whitened_patches_have_the_covariance_promised() -> None:
    rows = public_patches(3)
    white = public_whitening(3)
    covariance = np.cov(rows.numpy().T, bias=True)
    values, vectors = np.linalg.eigh(covariance)
    found = np.cov(white(rows).numpy().T, bias=True)
    assert np.abs(found - (vectors * (values / (values + 0.1))) @ vectors.T).max() < 1e-9
    assert white(rows).mean(0).abs().max() < 1e-9


def test_public_patches_are_the_reduced_photographs() -> None:
    from sklearn.datasets import load_sample_images

    first = np.array(load_sample_images().images[0], dtype=np.float64)
    across = 640 // 4 - 5
    place = 30 * across + 40  # top 30, left 40 of the first photograph reduced 4 times
    small = first[:424].reshape(106, 4, 160, 4, 3).mean((1, 3))
    for channels in (3, 1):
        weights = np.array([[0.299], [0.587], [0.114]]) if channels == 1 else np.eye(3)
        patch = (small[30:36, 40:46] @ weights).transpose(2, 0, 1).ravel()
        expected = (patch - patch.mean()) / np.sqrt(patch.var(ddof=1) + 10)
        found = public_patches(channels)
        assert found.shape == (2 * (101 * 155 + 48 * 75), 36 * channels)
        assert np.abs(found[place].numpy() - expected).max() < 1e-12


def test_a_filter_is_a_whitened_patch_of_length_one() -> None:
    dictionary, white = public_dictionary(3, 40, 2), public_whitening(3)
    w = dictionary.kernels.double() @ torch.linalg.inv(white.matrix)
    assert (w.norm(dim=1) - 1).abs().max() < 1e-5
    q = functional.normalize(white(public_patches(3)), dim=1)
    assert ((w @ q.T).max(1).values > 1 - 1e-5).all()


@pytest.mark.parametrize("make", [public_dictionary, gaussian_dictionary])
def test_more_filters_begin_with_fewer(make: Callable[[int, int, int], Dictionary]) -> None:
    many, few = make(1, 60, 3), make(1, 25, 3)
    assert torch.equal(many.kernels[:25], few.kernels)
    assert len(torch.unique(many.kernels, dim=0)) == 60
    assert not torch.equal(make(1, 25, 4).kernels, few.kernels)


def test_gaussian_directions_may_be_whitened_by_the_clients_sums() -> None:
    sums = PatchSums.of(random_images(6, 2, 12, 12))
    dictionary = gaussian_dictionary(2, 50, 0, sums)
    assert dictionary.channels == 2 and dictionary.filters == 50
    w = dictionary.kernels.double() @ torch.linalg.inv(whitening(sums).matrix)
    assert (w.norm(dim=1) - 1).abs().max() < 1e-4
    assert w.mean().abs() < 0.02


def naive_kmeans(q: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, float]:
    """One round with the signs folded, patch by patch."""
    totals, score = np.zeros_like(centres), 0.0
    for row in q:
        products = centres @ row
        nearest = int(np.abs(products).argmax())
        totals[nearest] += np.sign(products[nearest]) * row
        score += abs(products[nearest])
    lengths = np.linalg.norm(totals, axis=1, keepdims=True)
    return np.where(lengths > 0, totals / np.where(lengths > 0, lengths, 1), centres), score


def test_federated_kmeans_is_the_pooled_one_and_never_gets_worse() -> None:
    images = random_images(12, 1, 16, 16)
    white = whitening(PatchSums.of(images))
    q = white(torch.from_numpy(np.concatenate([every_patch(i, 2)[0] for i in images]))).numpy()
    centres = initial_centres(10, 36, 0)
    naive = centres.numpy()
    scores = []
    for _ in range(5):
        sums = CentreSums.of(images[:5], white, centres, stride=2)
        sums = sums + CentreSums.from_tensors(
            CentreSums.of(images[5:], white, centres, stride=2).tensors()
        )
        assert int(sums.counts.sum()) == len(q)
        centres = next_centres(sums, centres)
        naive, score = naive_kmeans(q, naive)
        assert np.abs(centres.numpy() - naive).max() < 1e-10
        assert abs(float(sums.score) - score) < 1e-9 * score
        scores.append(score)
    assert all(later >= earlier for earlier, later in itertools.pairwise(scores))
    assert scores[-1] > 1.05 * scores[0]


def test_a_centre_without_patches_stays() -> None:
    centres = initial_centres(3, 36, 1)
    sums = CentreSums(torch.zeros(3, 36).double(), torch.zeros(3).double(), torch.tensor(0.0))
    assert torch.equal(next_centres(sums, centres), centres)
    assert (centres.norm(dim=1) - 1).abs().max() < 1e-12
    assert torch.equal(initial_centres(9, 36, 1)[:3], centres)


def test_raw_patches_are_pieces_of_the_images() -> None:
    images = random_images(5, 3, 9, 11)
    found = raw_patches(images, 40, seeds.generator(0, "projection", 108, 9))
    every = np.concatenate([every_patch(image)[0] for image in images])
    distances = np.abs(found.numpy()[:, None] - every[None]).max(2)
    assert found.shape == (40, 108) and distances.min(1).max() < 1e-12
    assert len(set(distances.argmin(1).tolist())) > 15
    again = raw_patches(images, 40, seeds.generator(0, "projection", 108, 9))
    assert torch.equal(found, again)
    white = whitening(PatchSums.of(images))
    assert Dictionary.fold(white(found), white).filters == 40


def test_what_changes_the_map_changes_its_fingerprint() -> None:
    dictionary = public_dictionary(1, 8, 0)

    def name(
        dictionary: Dictionary = dictionary,
        size: int = 16,
        dtype: torch.dtype = torch.float32,
        **features: object,
    ) -> str:
        settings = Features(**features)  # type: ignore[arg-type]
        return PatchMap(dictionary, spec(1, size), settings, CPU, dtype).fingerprint

    other = Dictionary(dictionary.mean, dictionary.kernels * 2)
    moved = Dictionary(dictionary.mean + 1, dictionary.kernels)
    names = [
        name(),
        name(other),
        name(moved),
        name(size=17),
        name(dtype=torch.bfloat16),
        name(stride=2),
        name(views=("mirror",)),
        name(public_dictionary(1, 8, 1)),
    ]
    assert len(set(names)) == len(names)
    assert name(Dictionary.from_tensors(dictionary.tensors())) == names[0]
    assert name(public_dictionary(1, 8, 0)) == names[0]


def test_the_arithmetic_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    dictionary = public_dictionary(1, 8, 0)
    for native in (True, False):
        monkeypatch.setattr(module, "native_bfloat16", lambda device, native=native: native)
        for precision, low in (("auto", native), ("float32", False), ("bfloat16", True)):
            phi = PatchMap(dictionary, spec(1, 8), Features(precision=precision), CPU)
            assert uses_bfloat16(precision, CPU) is low
            assert phi.arithmetic == (torch.bfloat16 if low else torch.float32)
            assert phi.dtype == torch.float32
            assert (phi.note is not None) == (precision == "auto" and not native)
            assert phi(random_images(2, 1, 8, 8)).shape == (2, *phi.shape)
    monkeypatch.undo()
    assert uses_bfloat16("auto", torch.device("cuda"))
    assert not uses_bfloat16("auto", torch.device("meta"))


def test_what_cannot_work_is_refused_by_name() -> None:
    dictionary = public_dictionary(3, 8, 0)
    with pytest.raises(UsageError, match=r"5 pixels .* smaller than a patch of 6 x 6"):
        PatchMap(dictionary, spec(3, 5), Features(), CPU)
    with pytest.raises(UsageError, match="smaller than a patch"):
        PatchMap(dictionary, spec(3, 6), Features(), CPU)(
            torch.zeros(1, 3, 6, 4, dtype=torch.uint8)
        )
    with pytest.raises(UsageError, match="smaller than a patch"):
        PatchSums.of(torch.zeros(1, 3, 4, 9, dtype=torch.uint8))
    with pytest.raises(UsageError, match="for images of 3 channels; those of toy have 1"):
        PatchMap(dictionary, spec(1, 8), Features(), CPU)
    with pytest.raises(UsageError, match=r"asks for 38511 filters.* hold 38510 patches"):
        public_dictionary(3, 38511, 0)
    with pytest.raises(UsageError, match="these images have 2"):
        public_patches(2)
    with pytest.raises(UnknownName, match="mirrored"):
        PatchMap(dictionary, spec(3, 8), Features(views=("mirrored",)), CPU)
    with pytest.raises(UsageError, match=r"\(4, 35\)"):
        Dictionary(torch.zeros(35), torch.zeros(4, 35))
    with pytest.raises(NumericalError, match="patch dictionary"):
        Dictionary(torch.zeros(36), torch.full((4, 36), torch.nan))
    with pytest.raises(DataError, match="no patches to whiten"):
        whitening(PatchSums.of(torch.zeros(0, 3, 9, 9, dtype=torch.uint8)))


def test_contrast_of_a_flat_patch_is_nothing() -> None:
    rows = torch.tensor([[7.0] * 36, [0.0] * 36, [*range(36)]]).double()
    found = contrast(rows)
    assert not found[:2].any() and abs(float(found[2].sum())) < 1e-12
    assert torch.isclose(found[2].var(), torch.tensor(111 / 121).double())
