import pytest
import torch

from calibrant.meta import GammaFocal
from calibrant.meta.regularizers import (
    GammaNet,
    attention_of,
    gamma_of,
    head_gammas_of,
    init_gamma_net,
    with_head_scores,
)


def golden_net():
    n = torch.arange(4, dtype=torch.float64).unsqueeze(1)
    i = torch.arange(6, dtype=torch.float64)
    features = torch.sin(n + 0.7 * i).abs()
    attention = 0.3 * torch.cos(1.1 * i.unsqueeze(1) + torch.arange(5, dtype=torch.float64))
    return {"attention": attention, "readout": 0.02 * torch.sin(i + 1)}, features


def test_gamma_of_golden_input_gives_published_values():
    params, features = golden_net()
    expected = torch.tensor([0.494449, 0.167037, 0.465244, 0.524419], dtype=torch.float64)
    torch.testing.assert_close(gamma_of(params, features), expected, rtol=0, atol=5e-7)


@pytest.mark.parametrize(("d", "k"), [(512, 10), (64, 64), (64, 200), (3, 1), (1, 5)])
def test_gamma_net_start_is_gamma_init_for_every_sample(d, k):
    generator = torch.Generator().manual_seed(d + k)
    features = 3 * torch.randn(50, d, generator=generator)
    for start in (1.0, 2.5):
        net = GammaNet(d, k, gamma_init=start, generator=generator)
        torch.testing.assert_close(net(features).detach(), torch.full((50,), start), rtol=1e-5, atol=0)


def test_with_head_scores_hits_every_score_also_where_attention_has_a_low_rank():
    params, features = golden_net()
    assert torch.linalg.matrix_rank(params["attention"]) == 2
    fixed = with_head_scores(params, torch.full((5,), 0.01, dtype=torch.float64))
    torch.testing.assert_close(gamma_of(fixed, features), torch.ones(4, dtype=torch.float64))


def test_gamma_of_at_the_bound_is_clamped_and_passes_a_gradient():
    params = with_head_scores({"attention": torch.ones(2, 3), "readout": torch.ones(2)}, torch.full((3,), 0.5))
    params["readout"].requires_grad_()
    gamma = gamma_of(params, torch.rand(4, 2), gamma_max=20.0)
    gamma.sum().backward()
    torch.testing.assert_close(gamma.detach(), torch.full((4,), 20.0))
    assert params["readout"].grad.abs().min() > 0


def test_project_pulls_only_heads_beyond_the_bound():
    generator = torch.Generator().manual_seed(1)
    params = init_gamma_net(8, 4, generator=generator)
    params = with_head_scores(params, torch.tensor([0.01, 0.3, -0.5, 0.02]))
    bounded = GammaFocal(gamma_max=20.0).project(params)
    torch.testing.assert_close(head_gammas_of(bounded), torch.tensor([1.0, 20.0, 20.0, 2.0]))
    torch.testing.assert_close(bounded["attention"][:, [0, 3]], params["attention"][:, [0, 3]])
    assert gamma_of(bounded, 50 * torch.randn(500, 8, generator=generator)).max() <= 20 * (1 + 1e-5)


def test_gamma_net_head_use_of_a_batch():
    net = GammaNet(6, 3, generator=torch.Generator().manual_seed(0))
    use = net.head_use(torch.zeros(5, 6))
    torch.testing.assert_close(use.gammas, torch.ones(3))
    torch.testing.assert_close(use.share, torch.full((3,), 1 / 3))
    assert float(use.effective) == pytest.approx(3.0)
    peaked = net.head_use(1e4 * net.attention[:, 1].detach().expand(5, 6))
    assert float(peaked.effective) == pytest.approx(1.0)
    assert float(peaked.share[1]) == pytest.approx(1.0)


def test_gamma_of_half_precision_features_are_computed_in_float32():
    params = init_gamma_net(64, 10, generator=torch.Generator().manual_seed(0))
    features = torch.rand(8, 64).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gamma = gamma_of(params, features)
    assert gamma.dtype == torch.float32
    torch.testing.assert_close(gamma, torch.ones(8), rtol=1e-5, atol=0)
    torch.testing.assert_close(attention_of(params, features).sum(1), torch.ones(8))


def test_gamma_net_wrong_arguments_raise():
    with pytest.raises(ValueError, match="`num_heads` must be a whole number >= 1"):
        GammaNet(4, 0)
    with pytest.raises(ValueError, match="`gamma_init` must be below `gamma_max`, 2"):
        GammaNet(4, 2, gamma_max=2.0, gamma_init=3.0)
    with pytest.raises(ValueError, match="`temperature` must be"):
        GammaNet(4, 2, temperature=0)


@pytest.mark.parametrize(("num_features", "num_heads"), [(64, 2), (64, 200), (342, 10), (512, 100), (2048, 2), (2048, 200)])
def test_gamma_of_default_pace_moves_alike_at_every_width(num_features, num_heads):
    focal, generator = GammaFocal(gamma_max=None), torch.Generator().manual_seed(0)
    hyper = focal.init(num_features, num_heads, generator=generator)
    features = torch.randn(64, num_features, generator=generator).relu()
    lr, means = focal.pace / float(focal.speed(hyper)), [1.0]
    leaves = {name: value.requires_grad_() for name, value in hyper.items()}
    adam = torch.optim.Adam(leaves.values(), lr=lr, betas=(0.5, 0.9), eps=1e-12)
    for _ in range(50):
        adam.zero_grad()
        (-focal.gamma(leaves, features).mean()).backward()
        adam.step()
        means.append(float(focal.gamma(leaves, features).mean().detach()))
    # An Adam step of 6e-5 moves gamma by 0.008 to 0.096 over these widths; divided by the speed, always by about 0.026.
    assert 0.024 < means[1] - means[0] < 0.028
    assert 2.3 < means[-1] < 3.3
