"""What every calibrator inherits: checks, application, files, a place in a network and in scikit-learn."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from torch import Tensor, nn

from calibrant import Predictions
from calibrant.calibrators import (
    CALIBRATORS,
    AttendedTemperatureScaling,
    BayesianBinning,
    CalibrationWarning,
    Calibrator,
    DirichletCalibration,
    EnsembleTemperatureScaling,
    HistogramBinning,
    IsotonicCalibration,
    MatrixScaling,
    PlattScaling,
    SplineCalibration,
    TemperatureScaling,
    TopLabelBinning,
    VectorScaling,
)
from calibrant.data.synthetic import synthetic_predictions

VAL, _ = synthetic_predictions(300, 3, temperature=2.0, hardness=0.5, split="val")
NEW, _ = synthetic_predictions(50, 3, temperature=2.0, seed=1)
LOGITS, LABELS = VAL.logits.double().numpy(), VAL.labels.numpy()
FOUND = TemperatureScaling().fit(VAL)


# Fit and apply.


def test_predict_proba_gives_back_what_it_was_given() -> None:
    expected = (NEW.logits.double() / FOUND.temperature_).softmax(1).float()
    logits = NEW.logits.float()
    array = FOUND.predict_proba(logits.numpy())
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.float32
    torch.testing.assert_close(torch.from_numpy(array), expected)
    torch.testing.assert_close(FOUND.predict_proba(logits), expected)
    torch.testing.assert_close(FOUND.predict_log_proba(logits).exp(), expected)
    assert FOUND.predict_proba(logits.half()).dtype == torch.float32
    assert isinstance(FOUND.predict_proba([[1.0, 2.0, 0.0]]), np.ndarray)
    dense = logits.reshape(10, 5, 3).movedim(-1, 1)
    torch.testing.assert_close(FOUND.predict_proba(dense).movedim(1, -1).reshape(-1, 3), expected)
    assert FOUND.predict(dense).flatten().tolist() == NEW.predicted.tolist()
    assert TemperatureScaling().fit(dense, NEW.labels.reshape(10, 5)).num_classes_ == 3


def test_apply_keeps_everything_but_the_scores() -> None:
    given = Predictions(logits=NEW.logits, labels=NEW.labels, split="test", class_names=list("abc"))
    repaired = FOUND.apply(given)
    assert (repaired.split, repaired.class_names) == (given.split, given.class_names)
    torch.testing.assert_close(repaired.probs, (NEW.logits.double() / FOUND.temperature_).softmax(1))


def test_predict_proba_on_fit_data_warns_unless_scores_repeat_themselves() -> None:
    with pytest.warns(CalibrationWarning, match="fitted on these examples") as caught:
        FOUND.predict_proba(VAL.logits.flip(0).float())
    assert caught[0].filename == __file__
    logits = torch.randint(3, (200, 2), generator=torch.Generator().manual_seed(0)).float()
    labels = torch.randint(2, (200,), generator=torch.Generator().manual_seed(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert TemperatureScaling().fit(logits, labels).predict_proba(logits[:150]).shape == (150, 2)


def test_forests_that_vote_alike_are_no_data_used_twice() -> None:
    random = np.random.default_rng(0)
    for trees in (10, 40):
        probs = random.multinomial(trees, random.dirichlet((1, 1, 1), size=240)) / trees
        labels = [random.choice(3, p=row) for row in probs]
        fitted = TemperatureScaling().fit(Predictions(probs=probs[:120], labels=labels[:120]))
        with warnings.catch_warnings(action="error"):
            fitted.apply(Predictions(probs=probs[120:], labels=labels[120:]))
        with pytest.warns(CalibrationWarning, match="fitted on these examples"):
            fitted.apply(Predictions(probs=probs[:120], labels=labels[:120]))


def test_wrong_input_is_named() -> None:
    for given, message in (
        ((VAL.logits,), "`labels` must be given"),
        ((VAL, VAL.labels), "`labels` must not be given with a `Predictions`"),
        ((VAL.probs, VAL.labels), "`logits` must be scores before softmax"),
    ):
        with pytest.raises(ValueError, match=message):
            TemperatureScaling().fit(*given)
    with pytest.raises(ValueError, match=r"`weights` must be \[300\]"):
        TemperatureScaling().fit(VAL, weights=[1.0])
    for logits, message in (
        (torch.zeros(2, 4), r"`logits` must be \[N, C\] with C = 3"),
        (torch.full((2, 3), math.nan), r"must not hold NaN or \+inf"),
        (NEW.probs, "`logits` must be scores before softmax"),
    ):
        with pytest.raises(ValueError, match=message):
            FOUND.predict_proba(logits)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (MatrixScaling(spreads=(1.0, 0.1)), "MatrixScaling: `spreads` must be one or more ascending"),
        (DirichletCalibration(n_folds=1), "DirichletCalibration: `n_folds` must be a whole number >= 2"),
        (VectorScaling(ridge=0.0), "`ridge` must be a finite number > 0"),
        (HistogramBinning(binning="other"), "HistogramBinning: `binning` must be one of"),  # type: ignore[arg-type]
        (BayesianBinning(span=-1.0), "`span` must be a finite number > 0"),
        (SplineCalibration(n_knots=2), "`n_knots` must be a whole number >= 3"),
        (TopLabelBinning(points_per_bin=0), "`points_per_bin` must be a whole number >= 1"),
        (AttendedTemperatureScaling(threshold=1.0), r"`threshold` must lie in \[0, 1\)"),
    ],
)
def test_wrong_hyper_parameter_is_named_by_the_fit(made: Calibrator, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made.fit(VAL)


@pytest.mark.parametrize("name", [name for name in CALIBRATORS.builtin if name not in ("none", "auto")])
def test_fit_on_few_examples_warns(name: str) -> None:
    given, _ = synthetic_predictions(15, 3, temperature=1.0, hardness=4.0, split="val")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CALIBRATORS[name]().fit(given)
    assert any(entry.category is CalibrationWarning and "15 examples are few" in str(entry.message) for entry in caught)


def test_fit_without_a_class_warns_where_classes_are_apart() -> None:
    given, _ = synthetic_predictions(3000, 4, split="val")
    given = given.subset(given.labels != 2)
    for kind in (VectorScaling, TopLabelBinning):
        with pytest.warns(CalibrationWarning, match=r"the fit data have no example of 1 of 4 classes \(2\)"):
            kind().fit(given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert TemperatureScaling().fit(given).temperature_ > 1


# Files.


def test_load_of_another_file_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(FileNotFoundError):
        Calibrator.load(path)
    path.write_text('{"format": "calibrant calibrator", "version": 1, "calibrator": "temperature"}')
    with pytest.raises(ValueError, match="must describe a calibrator"):
        Calibrator.load(path)


@pytest.mark.parametrize(
    ("kind", "learned"),
    [
        (TemperatureScaling, {"temperature": 0.0}),
        (TemperatureScaling, {"temperature": float("nan")}),
        (TemperatureScaling, {"temperature": [1.0, 2.0]}),
        (EnsembleTemperatureScaling, {"mixture": [0.5, 0.5, 0.5]}),
        (EnsembleTemperatureScaling, {"mixture": [1.5, -0.5, 0.0]}),
        (VectorScaling, {"weight": [1.0, 1.0]}),
        (VectorScaling, {"weight": [1e308, 1.0, 1.0]}),
        (PlattScaling, {"slope": None}),
        (PlattScaling, {"slope": 10**400}),
        (IsotonicCalibration, {"values": [[0.0, float("nan"), 1.0]] * 3, "knots": [[0.0, 0.5, 2.0]] * 3}),
        # No logits that are tried have these confidences.
        (SplineCalibration, {"values": [0.5, 0.7, 1.2, 0.9], "knots": [0.5, 0.85, 0.851, 2.0]}),
        (SplineCalibration, {"values": [0.5, 0.9], "knots": [0.5, 0.8, 2.0]}),
    ],
)
def test_load_refuses_what_cannot_have_been_learned(
    kind: type[Calibrator], learned: dict[str, object], tmp_path: Path, quiet: None
) -> None:
    path = tmp_path / "calibrator.json"
    kind().fit(VAL).save(path)
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "learned": {**data["learned"], **learned}}))
    with pytest.raises(ValueError, match=f"{kind.__name__}|must describe a calibrator"):
        Calibrator.load(path)
    path.write_text(json.dumps({**data, "floor": 0.4}))
    with pytest.raises(ValueError, match="`floor` must"):
        Calibrator.load(path)


# In a network.


class Returning(nn.Module):
    """A linear layer that returns its logits within something; its arguments have names, and a mask that matters."""

    def __init__(self, within: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.within = within

    def forward(self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None) -> object:
        assert input_ids is not None
        return self.within(self.head(input_ids if attention_mask is None else input_ids * attention_mask))


INPUTS = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "within",
    [
        lambda logits: logits,
        lambda logits: {"loss": logits.sum(), "logits": logits},
        lambda logits: SimpleNamespace(loss=None, logits=logits),
        lambda logits: (logits, logits + 1),
    ],
    ids=["tensor", "mapping", "attribute", "tuple"],
)
def test_wrapped_model_is_read_whatever_holds_its_logits_and_called_by_position_or_name(
    within: Callable[[Tensor], object],
) -> None:
    model, mask = Returning(within), torch.tensor([1.0, 0.0, 1.0, 1.0])
    wrapped = FOUND.wrap(model).eval()
    expected = FOUND.predict_log_proba(model.head(INPUTS * mask).detach())
    with torch.no_grad():
        for found in (
            wrapped(INPUTS, mask),
            wrapped(attention_mask=mask, input_ids=INPUTS),
            wrapped(INPUTS, attention_mask=mask),
        ):
            torch.testing.assert_close(found, expected)


def test_wrapped_model_without_logits_or_of_other_classes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^WrappedModel: `model` must return logits"):
        FOUND.wrap(Returning(lambda logits: {"loss": logits}))(INPUTS)
    with pytest.raises(ValueError, match="`logits` must have C = 3 classes"):
        FOUND.wrap(nn.Linear(4, 2))(INPUTS)


@pytest.mark.parametrize("kind", [TemperatureScaling, IsotonicCalibration, PlattScaling])
def test_wrapped_model_of_one_logit_gives_calibrated_log_odds(kind: type[Calibrator], quiet: None) -> None:
    given, _ = synthetic_predictions(500, 2, temperature=2.0, split="val")
    found = kind().fit(given)
    odds = torch.linspace(-6, 6, 9).unsqueeze(1)
    expected = found.predict_proba(torch.cat([torch.zeros(9, 1), odds], 1))[:, 1:]
    torch.testing.assert_close(found.wrap(nn.Identity())(odds).sigmoid(), expected, atol=1e-6, rtol=1e-5)


# In scikit-learn.


def test_cross_val_score_is_that_of_fits_by_hand() -> None:
    folds = [(np.arange(150), np.arange(150, 300)), (np.arange(150, 300), np.arange(150))]
    by_hand = []
    for kept, held in folds:
        log_probs = TemperatureScaling().fit(LOGITS[kept], LABELS[kept]).predict_log_proba(LOGITS[held])
        by_hand.append(float(log_probs[np.arange(150), LABELS[held]].mean()))
    found = cross_val_score(TemperatureScaling(), LOGITS, LABELS, cv=folds, scoring="neg_log_loss")
    assert found.tolist() == pytest.approx(by_hand, rel=1e-9)
    # The top class stays, so that accuracy, the score by default, is the model's own.
    right = LOGITS.argmax(1) == LABELS
    accuracy = cross_val_score(TemperatureScaling(), LOGITS, LABELS, cv=folds)
    assert accuracy.tolist() == pytest.approx([right[held].mean() for _, held in folds])
    two = LABELS < 2
    assert (cross_val_score(TemperatureScaling(), LOGITS[two][:, :2], LABELS[two], cv=2, scoring="roc_auc") > 0.5).all()


def test_fit_takes_the_names_of_scikit_learn() -> None:
    weights = np.arange(300) % 3
    ours = TemperatureScaling().fit(logits=LOGITS, labels=LABELS, weights=weights)
    theirs = TemperatureScaling().fit(X=LOGITS, y=LABELS, sample_weight=weights)
    assert ours.temperature_ == theirs.temperature_ != FOUND.temperature_
    with pytest.raises(ValueError, match="`logits`"):
        TemperatureScaling().fit(y=LABELS)


def test_pipeline_after_a_model_that_gives_scores() -> None:
    model = LogisticRegression().fit(LOGITS, LABELS)
    pipeline = make_pipeline(FunctionTransformer(model.decision_function), TemperatureScaling()).fit(LOGITS[:200], LABELS[:200])
    alone = TemperatureScaling().fit(model.decision_function(LOGITS[:200]), LABELS[:200])
    scores = model.decision_function(LOGITS[200:])
    np.testing.assert_allclose(pipeline.predict_proba(LOGITS[200:]), alone.predict_proba(scores))
    assert pipeline.predict(LOGITS[200:]).tolist() == scores.argmax(1).tolist()
    assert pipeline.set_params(temperaturescaling__n_bins=7)[-1].n_bins == 7


def test_binary_calibrator_takes_log_odds() -> None:
    odds = torch.linspace(-3, 3, 200)
    both = torch.stack([torch.zeros(200), odds], 1)
    labels = (odds > 0).long() ^ (torch.arange(200) % 5 == 0).long()
    expected = TemperatureScaling().fit(both, labels).predict_proba(both[3:9] / 2)
    # As a network with one output gives them, and as scikit-learn's `decision_function`.
    for given, new in ((odds.unsqueeze(1), odds[3:9].unsqueeze(1) / 2), (odds.numpy(), odds[3:9].numpy() / 2)):
        found = TemperatureScaling().fit(given, labels)
        assert torch.equal(torch.as_tensor(found.predict_proba(new)), expected)
        assert found.predict(new).tolist() == expected.argmax(1).tolist()
    with pytest.raises(ValueError, match=r"C = 3 as in the fit, got \[200\]"):
        FOUND.predict_proba(odds)
