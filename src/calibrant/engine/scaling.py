"""Temperature scaling of a run, which ``+ts`` behind a method's name asks for."""

from __future__ import annotations

from dataclasses import replace

from calibrant.core.records import Predictions
from calibrant.engine.methods import split_name
from calibrant.engine.result import Run


def with_temperature(run: Run) -> Run:
    """Return the run with its predictions after temperature scaling, fitted on its validation part.

    Args:
        run: A run of a method without ``+ts``, or the same one with it. Nothing is trained again, so one base run serves both.

    Returns:
        The run of the method with ``+ts``; weights and history are the base run's. It lies in no folder yet.
    """
    from calibrant.calibrators.temperature import TemperatureScaling

    if run.temperature is not None:
        return run
    fitted = TemperatureScaling().fit(run.val)
    temperature = float(fitted.temperature_)
    name = split_name(run.recipe.method.name)[0]
    recipe = replace(run.recipe, method=replace(run.recipe.method, name=f"{name}+ts"))
    val, test = (_scaled(part, temperature) for part in (run.val, run.test))
    return replace(run, recipe=recipe, val=val, test=test, temperature=temperature, folder=None, shift={})


def _scaled(predictions: Predictions, temperature: float) -> Predictions:
    return predictions.replace(logits=predictions.logits / temperature)
