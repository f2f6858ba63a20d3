"""The step of every method can be recorded as a CUDA graph once and replayed over all epochs."""

from functools import partial

import pytest

from calibrant.engine.methods import METHODS
from calibrant.engine.recipe import Recipe, override
from calibrant.engine.train import Assembly
from tracing import trace_step

TINY = {
    "data.name": "mixture",
    "backbone.name": "mlp",
    "train.batch_size": "50",
    "train.device": "cpu",
    "data.meta": "100",
}
PAPER = ["flgamma-sece", "ce-dece"]
FULL = {"method.options.lookahead": "full", "method.options.every": "1"}


@pytest.mark.parametrize("method", [*METHODS, *(f"{name} of the paper" for name in PAPER), "flgamma-sece in full"])
def test_method_step_is_one_program_over_tensors_that_stay(method):
    name, preset = method.split()[0], "paper" if method.endswith("paper") else "default"
    settings = {"method.name": name, "method.preset": preset} | (FULL if method.endswith("full") else {})
    recipe = override(Recipe(), TINY | settings)
    parts = Assembly(recipe)
    places = {key: value.data_ptr() for key, value in parts.state().items()}
    steps = {with_meta: partial(parts.take, with_meta=with_meta) for with_meta in {False, parts.objective.has_meta}}
    programs = {key: [] for key in steps}
    for epoch in (0, 1, 6):
        parts.objective.begin_epoch(epoch)
        parts.batches.begin_epoch(epoch, kept=parts.objective.kept())
        for key, run in steps.items():
            trace = trace_step(run)
            # On the CPU one pair sum goes by way of numpy.
            assert [op for op in trace.lost if op != "aten.lift_fresh.default"] == []
            # And Adam's step count is a number there, so that only the operations of a meta step can be compared.
            programs[key].append([(op, shapes) for op, _, shapes in trace.program] if key else trace.program)
        logits, _ = parts.val.run(parts.model, parts.eval_forward)
        parts.objective.end_epoch(logits, parts.val.labels)
    for found in programs.values():
        assert len(found[0]) > 30
        assert found == [found[0]] * 3
    # What a checkpoint restores, and a captured step reads, lies where it lay.
    assert {key: value.data_ptr() for key, value in parts.state().items()} == places
