from __future__ import annotations

import math

import pytest
import torch

from calibrant import Predictions
from calibrant.losses import AdaFocalLoss, adafocal_gammas, adafocal_loss, focal_loss, inverse_focal_loss
from helpers import golden, mixed_gaps

EDGES = torch.tensor([0.0, 0.25, 0.75, 1.0], dtype=torch.float64)
GAMMAS = torch.tensor([3.0, -0.5, 1.0], dtype=torch.float64)


def pair(p: float) -> torch.Tensor:
    return torch.tensor([[math.log(p), math.log(1 - p)]], dtype=torch.float64)


def test_adafocal_takes_the_gamma_of_the_true_class_probabilitys_bin() -> None:
    cases = [(0.1, 0.9**3), (0.5, 1.5**0.5), (0.7, 1.7**0.5), (0.9, 0.1)]
    for p, factor in cases:
        value = adafocal_loss(pair(p), torch.tensor([0]), gammas=GAMMAS, edges=EDGES)
        assert value.item() == pytest.approx(-factor * math.log(p))


def test_adafocal_at_an_edge_falls_into_the_bin_below() -> None:
    # Four equal logits: p is exactly a quarter.
    value = adafocal_loss(torch.zeros(1, 4, dtype=torch.float64), torch.tensor([0]), gammas=GAMMAS, edges=EDGES)
    assert value.item() == pytest.approx(0.75**3 * math.log(4))


def test_adafocal_beyond_the_outer_edges_uses_the_outer_bins() -> None:
    edges = torch.tensor([0.4, 0.5, 0.6, 0.7], dtype=torch.float64)
    low = adafocal_loss(pair(0.1), torch.tensor([0]), gammas=GAMMAS, edges=edges)
    high = adafocal_loss(pair(0.9), torch.tensor([0]), gammas=GAMMAS, edges=edges)
    assert low.item() == pytest.approx(-(0.9**3) * math.log(0.1))
    assert high.item() == pytest.approx(-0.1 * math.log(0.9))


def test_adafocal_never_chooses_a_bin_of_zero_width() -> None:
    edges = torch.tensor([0.0, 0.5, 0.5, 1.0], dtype=torch.float64)
    gammas = torch.tensor([0.0, 99.0, 0.0], dtype=torch.float64)
    logits, labels = golden()
    logits = torch.cat([logits, torch.zeros(1, 5, dtype=torch.float64)])
    labels = torch.cat([labels, torch.tensor([0])])
    value = adafocal_loss(logits, labels, gammas=gammas, edges=edges)
    torch.testing.assert_close(value, torch.nn.functional.cross_entropy(logits, labels, reduction="none"))


def test_adafocal_with_one_gamma_is_focal_or_inverse_focal() -> None:
    logits, labels = golden()
    torch.testing.assert_close(
        adafocal_loss(logits, labels, gammas=torch.full((3,), 2.0), edges=EDGES), focal_loss(logits, labels, gamma=2)
    )
    torch.testing.assert_close(
        adafocal_loss(logits, labels, gammas=torch.full((3,), -2.0), edges=EDGES), inverse_focal_loss(logits, labels, gamma=2)
    )


def test_adafocal_refuses_edges_that_do_not_fit() -> None:
    logits, labels = golden()
    with pytest.raises(ValueError, match=r"`gammas` must be \[M\] and `edges` \[M \+ 1\], got \[3\], \[3\]"):
        adafocal_loss(logits, labels, gammas=GAMMAS, edges=EDGES[:3])


def test_adafocal_update_rule_by_hand() -> None:
    gammas = torch.tensor([1.0, 1.0, -1.0, -1.0, 0.25, -0.25, 19.0, -1.9])
    gaps = torch.tensor([0.5, -0.5, 0.5, -0.5, -0.4, 0.4, 0.5, -0.5])
    e = math.exp(0.5)
    # Grows where over-confident, shrinks where under-confident; changes over below 0.2; clipped to [-2, 20].
    expected = [e, 1 / e, -1 / e, -e, -0.2, 0.2, 20.0, -2.0]
    moved = adafocal_gammas(gammas, gaps)
    assert moved.tolist() == pytest.approx(expected)
    assert gammas[0].item() == 1.0


def test_adafocal_update_rule_without_gaps_changes_nothing() -> None:
    gammas = torch.tensor([1.0, -0.5, 20.0, -2.0])
    assert torch.equal(adafocal_gammas(gammas, torch.zeros(4)), gammas)


def test_adafocal_module_before_any_update_is_focal_loss() -> None:
    logits, labels = golden()
    torch.testing.assert_close(AdaFocalLoss(reduction="none")(logits, labels), focal_loss(logits, labels, gamma=1))
    assert torch.equal(AdaFocalLoss(n_bins=4).edges, torch.tensor([0, 0.25, 0.5, 0.75, 1.0]))


def test_adafocal_module_update_moves_gammas_by_the_gaps_of_equal_mass_bins() -> None:
    probs, labels = mixed_gaps(n=300)
    loss = AdaFocalLoss(n_bins=3, rate=2.0)
    bins = loss.update(probs, labels)
    confidence, order = probs.amax(1).sort()
    correct = (probs.argmax(1) == labels)[order].double()
    gaps = (confidence - correct).reshape(3, 100).mean(1)
    torch.testing.assert_close(loss.gammas.double(), torch.exp(2 * gaps), rtol=1e-6, atol=0)
    torch.testing.assert_close(bins.gap, gaps)
    expected = torch.stack([confidence[0], confidence[99], confidence[199], confidence[299]])
    torch.testing.assert_close(loss.edges.double(), expected, rtol=1e-6, atol=0)


def test_adafocal_module_update_from_predictions_equals_that_from_arrays() -> None:
    probs, labels = mixed_gaps(n=200)
    one, two, three = AdaFocalLoss(), AdaFocalLoss(), AdaFocalLoss()
    one.update(probs, labels)
    two.update(Predictions(probs=probs, labels=labels, split="val"))
    three.update(probs.numpy(), labels.tolist())
    assert torch.equal(one.gammas, two.gammas)
    assert torch.equal(one.edges, two.edges)
    assert torch.equal(one.gammas, three.gammas)


def test_adafocal_module_with_all_confidences_tied_stays_usable() -> None:
    probs = torch.tensor([[1.0, 0.0]] * 20)
    loss = AdaFocalLoss()
    loss.update(probs, torch.arange(20) % 2)
    assert torch.equal(loss.edges, torch.ones(16))
    logits, labels = golden()
    # Every true-class probability lies in the first bin, whose gap was one half.
    torch.testing.assert_close(loss(logits, labels), focal_loss(logits, labels, gamma=float(loss.gammas[0])).mean())
    assert loss.gammas[0].item() == pytest.approx(math.exp(0.5))


def test_adafocal_module_with_fewer_examples_than_bins_leaves_the_empty_ones() -> None:
    loss = AdaFocalLoss()
    loss.update([[0.9, 0.1], [0.6, 0.4]], [0, 0])
    assert loss.gammas.tolist() == pytest.approx([math.exp(-0.4), math.exp(-0.1)] + [1.0] * 13)
    assert torch.isfinite(loss(*golden()))


def test_adafocal_module_turns_to_inverse_focal_when_under_confident() -> None:
    loss = AdaFocalLoss(n_bins=1)
    for _ in range(4):
        loss.update([[0.55, 0.45]] * 4, [0] * 4)
    # 1 -> e^-0.45 -> e^-0.9 -> e^-1.35 -> below 0.2, hence -0.2.
    assert loss.gammas.item() == pytest.approx(-0.2)
    logits, labels = golden()
    torch.testing.assert_close(loss(logits, labels), inverse_focal_loss(logits, labels, gamma=0.2).mean())


def test_adafocal_module_state_travels_with_a_sum() -> None:
    probs, labels = mixed_gaps(n=200)
    first = 0.5 * AdaFocalLoss()
    first.terms[0].update(probs, labels)
    second = 0.5 * AdaFocalLoss()
    second.load_state_dict(first.state_dict())
    assert set(first.state_dict()) == {"terms.0.gammas", "terms.0.edges"}
    assert torch.equal(second(*golden()), first(*golden()))


def test_adafocal_module_update_refuses_test_data_and_missing_labels() -> None:
    loss = AdaFocalLoss()
    test = Predictions(probs=[[0.9, 0.1]], labels=[0], split="test")
    with pytest.raises(ValueError, match=r"must not be of the test split, got split=test. Pass validation data"):
        loss.update(test)
    with pytest.raises(ValueError, match=r"`labels` must be given beside `probs`"):
        loss.update([[0.9, 0.1]])
    with pytest.raises(ValueError, match=r"`labels` must not be given beside `Predictions`"):
        loss.update(test.replace(split="val"), [0])
    assert torch.equal(loss.gammas, torch.ones(15))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_bins": 0}, r"`n_bins` must be a whole number >= 1, got 0"),
        ({"rate": -1.0}, r"`rate` must be a finite number > 0, got -1.0"),
        ({"gamma_min": -0.1}, r"`gamma_min` must be at most -switch = -0.2, got -0.1"),
    ],
)
def test_adafocal_module_refuses_hyper_parameters_out_of_range(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdaFocalLoss(**wrong)
