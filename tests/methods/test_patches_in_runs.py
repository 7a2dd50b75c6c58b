"""Patches as what a method reads: alone, beside a network, and with filters made federatedly."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fcil.errors import Refused, UsageError
from fcil.experiment.run import run
from fcil.methods.parts import dictionary
from fcil.methods.stsa_e import StsaE
from fcil.patches import CentreSums, PatchSums, initial_centres, next_centres, whitening
from fcil.record import Record
from fcil.stats.parameters import Parameters
from small import make, shard, sources, world_of

ALONE = ("first_stage.kind=none", "features.patches=24", "method.projection=0")


def outcome(*assignments: str, method: str = "stsa") -> Record:
    return run(make(*ALONE, *assignments, method=method), device="cpu")


def test_nothing_is_trained_and_who_holds_what_never_shows() -> None:
    base = outcome()
    assert base.gradient_steps == [0] * 5
    assert base.A_T is not None and base.A_T > 80
    assert "first_stage" not in base.seconds
    for other in ("clients.beta=0.1", "clients.beta=0", "clients.count=1", "clients.count=7"):
        found = outcome(other)
        assert found.matrix == base.matrix, other
        assert [s["hash"] for s in found.statistics] == [s["hash"] for s in base.statistics]
    auto = ("method.gamma=auto", "features.views=['plain','mirror']")
    assert outcome(*auto).fingerprint != base.fingerprint


def test_no_network_is_read_unless_something_made_one() -> None:
    moments = outcome("features.patches=3").statistics
    assert moments[-1]["exact"]
    # Two signs, four cells, three filters, the constant - and a network's 128 beside them.
    assert width_of(*ALONE, "features.patches=3") == 2 * 4 * 3 + 1
    assert width_of("features.patches=3", "method.projection=0") == 128 + 25
    assert width_of("features.patches=3", "method.projection=50") == 50 + 25
    assert width_of("first_stage.kind=none", "method.projection=50") == 50


def width_of(*assignments: str) -> int:
    from fcil import features

    made = make(*assignments)
    world, _ = world_of(made)
    return features.width_of(world, made.method["projection"])


def test_a_network_beside_patches_and_both_in_real_numbers() -> None:
    both = ("features.patches=16", "method.projection=0", "features.layers=[2,3]")
    found = run(make(*both), device="cpu")
    assert found.gradient_steps[0] > 0 and found.A_T is not None and found.A_T > 85
    real = run(make(*both, "features.bits=0"), device="cpu")
    assert real.A_T is not None and abs(real.A_T - found.A_T) < 2
    estimated = run(make(*both, "method.units=20", method="stsa-e"), device="cpu")
    assert estimated.A_T is not None and abs(estimated.A_T - found.A_T) < 5


def test_k_means_over_clients_is_k_means_over_all_images() -> None:
    made = make(*ALONE, "features.dictionary=task1-kmeans")
    world, laid = world_of(made)
    train, _ = sources(laid)
    state: Any = None
    for _ in range(dictionary.asks(world)):
        assert dictionary.finished(world, state) is None
        ask = dictionary.ask(world, state)
        uploads = [
            (client, dictionary.answer(world, ask, client, shard(train, rows)))
            for client, rows in enumerate(laid.rows[0])
        ]
        state = dictionary.absorb(world, state, ask, iter(uploads))
    found = dictionary.finished(world, state)
    assert found is not None

    first = torch.cat([torch.from_numpy(rows) for rows in laid.rows[0]])
    images = train.images[first]
    white = whitening(PatchSums.of(images))
    centres = initial_centres(24, 36, made.seed)
    for _ in range(dictionary.ROUNDS):
        centres = next_centres(CentreSums.of(images, white, centres, dictionary.STRIDE), centres)
    torch.testing.assert_close(found.kernels, (centres @ white.matrix).float())
    torch.testing.assert_close(found.mean, white.mean.float())


def test_filters_made_from_the_first_task_cost_asks_and_bytes() -> None:
    public = outcome()
    learned = outcome("features.dictionary=task1-kmeans")
    assert learned.fingerprint != public.fingerprint
    centres = 8 * 24 * 36  # float64
    for client in range(3):
        more = learned.bytes["up"][0][client] - public.bytes["up"][0][client]
        assert more > dictionary.ROUNDS * centres
    assert learned.bytes["up"][1:] != [] and learned.gradient_steps == [0] * 5


def test_pieces_of_images_travel_only_where_that_is_allowed() -> None:
    with pytest.raises(Refused, match=r"allow_raw_patches = true"):
        outcome("features.dictionary=task1-patches")
    allowed = ("features.dictionary=task1-patches", "features.allow_raw_patches=true")
    assert outcome(*allowed).A_T is not None

    world, laid = world_of(make(*ALONE, *allowed))
    train, _ = sources(laid)
    ask = dictionary.ask(world, {"whitening": {}})
    tables = [
        dictionary.answer(world, ask, client, shard(train, rows)).total["pieces"]
        for client, rows in enumerate(laid.rows[0])
    ]
    filled = torch.stack([(table != 0).any(1) for table in tables]).sum(0)
    assert filled.tolist() == [1] * 24, "every filter is one client's"


def test_a_client_without_an_image_leaves_no_filter_unmade() -> None:
    world, _ = world_of(make(*ALONE, "features.dictionary=task1-patches"))
    ask = dictionary.ask(world, {"whitening": {}})
    empty = Parameters.of({"pieces": torch.zeros(24, 36)})
    with pytest.raises(Exception, match="no image to cut pieces from"):
        dictionary.absorb(world, {"whitening": {}}, ask, iter([(0, empty)]))


def test_what_cannot_be_read_is_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match=r"features\.views|view"):
        outcome("features.views=['sideways']")
    wide = ("features.patches=400000", "features.dictionary=gaussian", "first_stage.kind=fedavg")
    with pytest.raises(UsageError, match=r"GiB"):
        run(make(*wide, "method.projection=0"), device="cpu")


def test_too_few_units_for_a_fold_are_refused_before_anything_starts() -> None:
    world, _ = world_of(made := make("method.gamma=auto", "method.units=3", method="stsa-e"))
    with pytest.raises(UsageError, match=r"method\.units = 3 leaves no fold"):
        StsaE(made.method_config()).start(world)
    with pytest.raises(UsageError, match=r"0\.003r, or auto"):
        make("method.gamma=automatic")
