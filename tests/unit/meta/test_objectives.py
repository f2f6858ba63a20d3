import pytest
import torch
import torch.nn.functional as F

from calibrant.losses import LOSSES, PENALTIES, SECE, dece_penalty, sece_penalty, skce_penalty
from calibrant.meta import PRESETS, make_objective
from calibrant.meta.objectives import objective_table
from helpers import golden


def test_make_objective_names_of_the_paper():
    logits, labels = golden()
    assert torch.equal(make_objective("dece")(logits, labels), dece_penalty(logits, labels))
    assert torch.equal(make_objective("skce")(logits, labels), skce_penalty(logits, labels))
    torch.testing.assert_close(make_objective("nll")(logits, labels), F.cross_entropy(logits, labels))
    paper = make_objective("sece", variants=PRESETS["paper"].objectives)
    assert float(paper(logits, labels)) == pytest.approx(0.330263, abs=5e-7)
    default = make_objective("sece", variants=PRESETS["default"].objectives)
    expected = sece_penalty(logits, labels, bandwidth=0.05, centred=True, distance="kl")
    torch.testing.assert_close(default(logits, labels), expected)


def test_make_objective_default_sece_gradient_comes_from_confidences_alone():
    logits, labels = golden()
    leaf = logits.clone().requires_grad_()
    make_objective("sece", variants=PRESETS["default"].objectives)(leaf, labels).backward()
    twin = logits.clone().requires_grad_()
    sece_penalty(twin, labels, detach_accuracy=True, centred=True, distance="kl").backward()
    assert torch.equal(leaf.grad, twin.grad)


def test_make_objective_weighted_names_add_up():
    logits, labels = golden()
    found = make_objective({"sece": 2.0, "nll": 0.5})(logits, labels)
    torch.testing.assert_close(found, 2 * sece_penalty(logits, labels) + 0.5 * F.cross_entropy(logits, labels))


def test_make_objective_callable_stays_itself():
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
    with pytest.raises(ValueError, match=r"unknown meta objective 'seec'. Did you mean 'sece'\?"):
        make_objective("seec")
    with pytest.raises(ValueError, match="`objective` must name at least one term, got an empty mapping"):
        make_objective({})
    with pytest.raises(ValueError, match="`objective` must be a name, names with weights, or a function, got 3"):
        make_objective(3)
