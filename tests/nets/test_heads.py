import math

import pytest
import torch

from fcil.nets.heads import Classifier, CosineHead, LinearHead
from fcil.nets.small_cnn import SmallCnn


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("kind", "bound"), [(LinearHead, math.sqrt(3 / 48)), (CosineHead, 48**-0.5)]
)
def test_growth_keeps_old_rows_and_draws_new_ones_within_the_bound(
    kind: type[LinearHead] | type[CosineHead], bound: float
) -> None:
    head = kind(48, 5, seeded())
    state = {key: value.clone() for key, value in head.state_dict().items()}
    head.grow(205, seeded(1))
    assert torch.equal(head.weight[:5], state["weight"])
    new = head.weight[5:].detach()
    assert new.abs().max().item() == pytest.approx(bound, rel=0.01)
    assert new.abs().max().item() <= bound
    assert new.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
    assert head(torch.randn(2, 48)).shape == (2, 205)
    assert head.weight.requires_grad
    with pytest.raises(ValueError, match="cannot grow"):
        head.grow(3)


def test_linear_bias_grows_with_zeros_and_is_kept() -> None:
    head = LinearHead(4, 2, seeded())
    assert head.bias.count_nonzero() == 0
    torch.nn.init.ones_(head.bias)
    head.grow(5, seeded())
    assert head.bias.tolist() == [1, 1, 0, 0, 0]


def test_same_generator_same_rows_and_torchs_own_stays_as_it_is() -> None:
    before = torch.get_rng_state()
    assert torch.equal(LinearHead(7, 3, seeded(5)).weight, LinearHead(7, 3, seeded(5)).weight)
    assert not torch.equal(LinearHead(7, 3, seeded(5)).weight, LinearHead(7, 3, seeded(6)).weight)
    assert torch.equal(torch.get_rng_state(), before)


def test_cosine_head_gives_scaled_cosines() -> None:
    head = CosineHead(6, 3, seeded())
    torch.nn.init.constant_(head.scale, 2.5)
    x = torch.randn(4, 6)
    expected = 2.5 * torch.cosine_similarity(x[:, None], head.weight[None], dim=2)
    torch.testing.assert_close(head(x), expected)
    assert CosineHead(6, 3).scale.item() == 1
    assert set(dict(head.named_parameters())) == {"weight", "scale"}


def test_classifier_is_head_of_backbone() -> None:
    model = Classifier(SmallCnn(1), LinearHead(128, 4, seeded())).eval()
    x = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(model(x), model.backbone(x) @ model.head.weight.T + model.head.bias)
