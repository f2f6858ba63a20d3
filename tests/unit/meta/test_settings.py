import pytest
import torch
import torch.nn.functional as F

from calibrant.losses import LOSSES, PENALTIES, SECE, dece_penalty, sece_penalty, skce_penalty
from calibrant.meta import PRESETS, MetaSettings, make_objective
from calibrant.meta.step import objective_table
from helpers import golden


def test_make_objective_names_of_the_paper():
    logits, labels = golden()
    assert torch.equal(make_objective("dece")(logits, labels), dece_penalty(logits, labels))
    assert torch.equal(make_objective("skce")(logits, labels), skce_penalty(logits, labels))
    torch.testing.assert_close(make_objective("nll")(logits, labels), F.cross_entropy(logits, labels))
    paper = make_objective("sece", variants=PRESETS["paper"].objectives)
    assert float(paper(logits, labels)) == pytest.approx(0.330263, abs=5e-7)


def test_default_sece_is_centred_by_divergence_with_a_gradient_from_confidences_alone():
    logits, labels = golden()
    leaf, twin = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    found = make_objective("sece", variants=PRESETS["default"].objectives)(leaf, labels)
    expected = sece_penalty(twin, labels, bandwidth=0.05, detach_accuracy=True, centred=True, distance="kl")
    found.backward()
    expected.backward()
    assert torch.equal(found, expected)
    assert torch.equal(leaf.grad, twin.grad)


def test_make_objective_weighted_names_add_up_and_a_callable_stays_itself():
    logits, labels = golden()
    found = make_objective({"sece": 2.0, "nll": 0.5})(logits, labels)
    torch.testing.assert_close(found, 2 * sece_penalty(logits, labels) + 0.5 * F.cross_entropy(logits, labels))
    module = SECE(bandwidth=0.2)
    assert make_objective(module) is module


def test_make_objective_every_name_gives_a_differentiable_scalar():
    logits, labels = golden()
    table = objective_table()
    assert {"nll", "sece", "dece", "skce", "brier"} <= set(table)
    assert set(table) <= {"nll", *LOSSES, *PENALTIES}
    for name, objective in table.items():
        leaf = logits.clone().requires_grad_()
        value = objective(leaf, labels)
        assert value.ndim == 0, name
        value.backward()
        assert bool(torch.isfinite(leaf.grad).all()), name


def test_make_objective_wrong_ones_raise():
    with pytest.raises(ValueError, match="unknown meta objective 'seec'"):
        make_objective("seec")
    for wrong in ({}, 3):
        with pytest.raises(ValueError, match="`objective` must be a name, names with weights, or a function"):
            make_objective(wrong)


@pytest.mark.parametrize(
    ("option", "value"),
    [("lookahead", "both"), ("meta_bn", "off"), ("every", 0), ("meta_lr", -1), ("lookahead_lr", 0)],
)
def test_settings_out_of_range_raise(option, value):
    with pytest.raises(ValueError, match=f"MetaLearner: `{option}` must be"):
        MetaSettings(**{option: value})


def test_virtual_step_follows_the_learning_rate_where_asked_to():
    assert MetaSettings().virtual_step(0.7).lr == 0.1
    step = MetaSettings(lookahead_lr="current", lookahead_reduction="sum").virtual_step(0.7)
    assert (step.lr, step.factor(8)) == (0.7, 1.0)
    assert MetaSettings().virtual_step(0.7).factor(8) == 0.125
