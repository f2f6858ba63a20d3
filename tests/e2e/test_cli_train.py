"""`calibrant train` as typed: what it prints, what it writes, how it ends; every method, and evaluation under shift."""

import json
import re
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import calibrant.cli.train as command
from calibrant.core.records import Split
from calibrant.data.synthetic import CORRUPTIONS, SEVERITIES, corrupt
from calibrant.engine.methods import METHODS
from calibrant.engine.recipe import Recipe, override
from calibrant.engine.run import is_finished, load_run
from calibrant.engine.setup import save_weights
from calibrant.engine.train import Assembly, evaluate_shift, load_data, scale_run, train, with_temperature
from calibrant.io import rewrite_predictions
from helpers import run_command

TINY = ["--data", "mixture", "--model", "mlp", "--device", "cpu", "--set", "train.batch_size=100"]
SETTINGS = {
    "data.name": "mixture",
    "backbone.name": "mlp",
    "train.device": "cpu",
    "train.batch_size": "100",
    "method.name": "ce",
    "train.epochs": "2",
}


def call(capsys, *arguments):
    return run_command(capsys, "train", *arguments)


def tiny(**settings):
    return override(Recipe(), SETTINGS | {key.replace("__", "."): value for key, value in settings.items()})


def test_cli_train_writes_a_run_and_says_what_came_of_it(tmp_path, capsys):
    code, out, err = call(capsys, *TINY, "--method", "flgamma-sece", "--epochs", 2, "--out", tmp_path / "r")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("epoch 1/2  val error ")
    assert all(word in lines[1] for word in ("epoch 2/2", "val error ", "ECE ", "gamma ", "images/s"))
    run = load_run(tmp_path / "r")
    metrics = json.loads((tmp_path / "r" / "metrics.json").read_text())["metrics"]
    assert f"test error {100 * metrics['error']['value']:.2f}%, ECE {100 * metrics['ece']['value']:.2f}%" in lines[2]
    assert f"epoch {run.best_epoch + 1} of 2" in lines[2]
    assert lines[3].startswith(f"written to {tmp_path / 'r'}")


def test_cli_predict_gives_what_the_run_predicted_itself(tmp_path, capsys, monkeypatch):
    run = train(tiny(method__name="ce+ts"), out=tmp_path / "r")
    images = load_data(run.recipe.data).test.images[:30]
    np.savez(tmp_path / "new.npz", images=images.numpy())
    code, said, err = run_command(capsys, "predict", tmp_path / "r", tmp_path / "new.npz", "--out", tmp_path / "new.csv")
    assert (code, err) == (0, "")
    confidence, classes = run.test.probs[0].max(0)
    assert said.splitlines()[2].split() == ["0", str(int(classes)), f"{100 * float(confidence):.1f}%"]
    # What `apply` reads needs no labels either.
    rewrite_predictions(tmp_path / "new.csv", tmp_path / "same.npz", lambda predictions: predictions)
    with np.load(tmp_path / "same.npz") as saved:
        assert np.array_equal(saved["logits"], run.test.logits[:30].numpy())
        assert saved["image"].tolist() == [str(number) for number in range(30)]
    # As `calibrant predict ... | head` closes the pipe.
    monkeypatch.setattr(command.Terminal, "print", Mock(side_effect=BrokenPipeError))
    with pytest.raises(BrokenPipeError):
        command.predict_images(tmp_path / "r", tmp_path / "new.npz", out=tmp_path / "piped.csv", device="cpu")
    assert (tmp_path / "piped.csv").read_bytes() == (tmp_path / "new.csv").read_bytes()
    # Runs of earlier releases do not know how they normalised.
    facts = json.loads((tmp_path / "r" / "run.json").read_text())
    del facts["inputs"]["mean"], facts["inputs"]["std"]
    (tmp_path / "r" / "run.json").write_text(json.dumps(facts))
    loaded = load_run(tmp_path / "r")
    for given in (images, images.squeeze(3).float() / 255, images.numpy().transpose(0, 3, 1, 2)):
        assert loaded.predict(given).equal(run.test.logits[:30])
    with pytest.raises(ValueError, match="`images` must be"):
        loaded.predict(torch.zeros(2, 9, 9))


def test_predict_reads_pictures_of_any_size_in_a_folder(tmp_path):
    run = train(tiny())
    (tmp_path / "deep").mkdir()
    for name, side in (("b.png", 8), ("a.png", 30), ("deep/c.jpg", 12), (".hidden.png", 8)):
        Image.new("RGB", (side, side), (200, 0, 0)).save(tmp_path / name)
    logits, names = run.predict_named(tmp_path)
    assert names == ["a.png", "b.png", "deep/c.jpg"]
    assert logits.shape == (3, 4)
    torch.testing.assert_close(run.predict(tmp_path / "b.png")[0], logits[0])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="must hold pictures"):
        run.predict(tmp_path / "empty")


def test_cli_train_recipe_file_options_and_settings_go_on_top_of_each_other(tmp_path, capsys):
    file = tmp_path / "recipe.toml"
    file.write_text('seed = 5\ndata.name = "mixture"\nbackbone.name = "mlp"\nmethod.name = "focal"\ntrain.epochs = 3\n')
    settings = ("--epochs", 1, "--set", "optim.lr=0.02", "--set", "method.options.gamma=2", "--preset", "paper")
    code, _, _ = call(capsys, file, *settings, "--out", tmp_path / "r")
    recipe = load_run(tmp_path / "r").recipe
    assert code == 0
    assert (recipe.seed, recipe.train.epochs, recipe.optim.lr, recipe.method.preset) == (5, 1, 0.02, "paper")
    assert recipe.method.options == {"gamma": 2}


def test_cli_train_default_folder_is_named_after_the_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(capsys, *TINY, "--method", "ce", "--epochs", 1, "--preset", "paper", "--seed", 3)[0] == 0
    assert load_run("runs/mixture-mlp-ce-paper-seed3").recipe.seed == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "mixtur"], "Did you mean 'mixture'?"),
        (["--method", "flgama-sece"], "Did you mean 'flgamma-sece'?"),
        (["--model", "os:nothing"], "`model` must be package.module:function"),
        (["--preset", "papr"], "`method.preset`"),
        (["--device", "cuda:x"], "`device`"),
        (["--seed", "-1"], "`seed`"),
        (["--set", "lr=1"], "unknown"),
        (["--set", "optim.lr"], "KEY=VALUE"),
        (["--set", "optim.lr=nan"], "`optim.lr`"),
        (["--set", "data.val=2000"], "`val`"),
        (["--set", "train.batch_size=5000"], "`train.batch_size`"),
        (["--set", "backbone.freeze=hiden1"], "Did you mean 'hidden1'?"),
        (["--set", "backbone.freeze=head"], "`backbone.freeze`"),
        (["--set", "method.options.evry=3"], "Did you mean 'every'?"),
        (["--set", "data.size=16"], "`data.size`"),
        (["--init", "no.safetensors"], "no.safetensors"),
        (["none.toml"], "none.toml"),
    ],
)
def test_cli_train_bad_input_is_one_sentence_and_leaves_no_folder(arguments, words, tmp_path, capsys):
    code, out, err = call(capsys, *TINY, *arguments, "--out", tmp_path / "a" / "b")
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "a" / "b").exists()


def test_cli_train_interrupted_says_how_to_go_on_and_goes_on(tmp_path, capsys, monkeypatch):
    whole = train(tiny(train__epochs="4"))
    show = command.show_epoch

    def interrupt(console, epochs, record):
        if record.epoch == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "show_epoch", interrupt)
    often = ("--set", "train.checkpoint_every_seconds=0")
    code, _, err = call(capsys, *TINY, *often, "--method", "ce", "--epochs", 4, "--out", tmp_path / "r")
    assert code == 130
    assert f"`calibrant train --resume --out {tmp_path / 'r'}`" in err
    monkeypatch.setattr(command, "show_epoch", show)
    code, out, err = call(capsys, "--resume", "--out", tmp_path / "r")
    assert (code, err) == (0, "")
    assert [line.split()[1] for line in out.splitlines()[:-2]] == ["3/4", "4/4"]
    assert load_run(tmp_path / "r").test.logits.equal(whole.test.logits)


def test_cli_train_interrupted_before_anything_was_written_says_so(tmp_path, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "train", interrupt)
    code, _, err = call(capsys, *TINY, "--method", "ce", "--out", tmp_path / "r")
    assert (code, "Nothing was written" in err) == (130, True)


def test_cli_train_resume_of_no_run_is_refused_unless_it_says_what_to_train(tmp_path, capsys):
    wrong = ("--resume", "--out", tmp_path / "first-rum", "--device", "cpu")
    code, out, err = call(capsys, *wrong)
    assert (code, out) == (2, "")
    assert "`--resume`" in err
    assert not (tmp_path / "first-rum").exists()
    assert call(capsys, *TINY, "--method", "ce", "--epochs", 1, "--resume", "--out", tmp_path / "first-run")[0] == 0


def test_cli_train_resume_with_a_damaged_checkpoint_is_one_sentence(tmp_path, capsys):
    run = ("--out", tmp_path / "r")
    assert call(capsys, *TINY, "--method", "ce", "--epochs", 1, *run)[0] == 0
    facts = json.loads((tmp_path / "r" / "run.json").read_text())
    (tmp_path / "r" / "run.json").write_text(json.dumps(facts | {"finished": None}))
    (tmp_path / "r" / "state.pt").write_bytes(bytes(range(256)) * 4)
    code, out, err = call(capsys, "--resume", *run)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "state.pt` must be a checkpoint" in err
    (tmp_path / "r" / "state.pt").unlink()
    code, out, err = call(capsys, "--resume", *run)
    assert (code, err) == (0, "")
    assert out.startswith("epoch 1/1 ")


def test_cli_train_temperature_scaling_is_that_of_the_base_run(tmp_path, capsys):
    base = train(tiny())
    code, out, _ = call(capsys, *TINY, "--method", "ce+ts", "--epochs", 2, "--out", tmp_path / "r")
    run = load_run(tmp_path / "r")
    assert code == 0
    assert f"logits divided by {run.temperature:.3f}" in out
    torch.testing.assert_close(run.test.logits, base.test.logits / run.temperature, rtol=1e-6, atol=0)

    # The temperature is the minimiser on the validation part: the NLL there is flat in it, and larger on both sides.
    def nll(factor):
        return float(torch.nn.functional.cross_entropy(run.val.logits.double() / factor, run.val.labels))

    assert nll(1.0) < min(nll(1.02), nll(0.98))
    again = with_temperature(base)
    assert again.temperature == run.temperature
    assert again.recipe.method.name == "ce+ts"
    assert with_temperature(again) is again


def test_cli_train_init_starts_from_weights_and_refuses_those_of_another_network(tmp_path, capsys):
    base = train(tiny(train__epochs="1"))
    weights = tmp_path / "w.safetensors"
    save_weights(weights, base.model.state_dict(), {}, notes={})
    built = Assembly(tiny(backbone__init=str(weights), backbone__freeze="hidden1")).model
    assert all(value.equal(base.model.state_dict()[name]) for name, value in built.state_dict().items())
    save_weights(weights, {"other": torch.zeros(1)}, {}, notes={})
    code, _, err = call(capsys, *TINY, "--init", weights, "--out", tmp_path / "r")
    assert (code, "`backbone.init`" in err) == (2, True)
    weights.write_bytes(b"nonsense")
    code, _, err = call(capsys, *TINY, "--init", weights, "--out", tmp_path / "r")
    assert (code, "must be a safetensors file" in err) == (2, True)


def test_train_frozen_layers_and_their_statistics_stay_as_they_are():
    recipe = tiny(backbone__name="convnet", backbone__freeze="conv1,bn1", train__epochs="1")
    before = {name: value.clone() for name, value in Assembly(recipe).model.state_dict().items()}
    after = train(recipe).model.state_dict()
    changed = {name.partition(".")[0] for name, value in after.items() if not value.equal(before[name])}
    assert changed == {"conv2", "bn2", "hidden", "head"}


def test_cli_train_in_a_terminal_shows_a_bar_and_a_line_for_every_epoch(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("calibrant.cli.train.Terminal", partial(Console, force_terminal=True, width=80, color_system=None))
    code, out, _ = call(capsys, *TINY, "--epochs", 2, "--out", tmp_path / "r")
    assert code == 0
    assert "━" in out
    assert re.search("epoch 1/2  val error .*\n", out)
    # Processes beside the first are silent.
    monkeypatch.setenv("RANK", "1")
    assert "━" not in call(capsys, *TINY, "--epochs", 2, "--out", tmp_path / "s")[1]


@pytest.mark.parametrize("preset", ["default", "paper"])
@pytest.mark.parametrize("method", METHODS.builtin)
def test_method_one_epoch_learns_something_and_reports_it(method, preset):
    run = train(tiny(method__name=method, method__preset=preset, train__epochs="1", train__batch_size="50", data__meta="300"))
    record = run.history[0]
    # Four classes: guessing errs on three quarters; one epoch of any method does better.
    assert record.test_error < 0.6
    assert record.val_error is not None
    assert 0 <= record.test_ece <= 1
    assert (run.test.split, len(run.test)) == (Split.TEST, 4000)
    assert (record.gamma_mean is not None) == ("flgamma" in method)


def test_train_same_seed_same_numbers_other_seed_others():
    first, second, third = (train(tiny(method__name="flgamma-sece", train__epochs="1", seed=s)) for s in ("1", "1", "2"))
    assert first.test.logits.equal(second.test.logits)
    assert not first.test.logits.equal(third.test.logits)


NAMES = [f"{kind}-{severity}" for kind in CORRUPTIONS for severity in SEVERITIES]


def numbers(shift, *, severity=None):
    return {name: scores.to_dict() for name, scores in shift.items() if severity is None or name.endswith(f"-{severity}")}


@pytest.fixture
def mild(monkeypatch):
    """Evaluate on the first severity alone."""
    monkeypatch.setattr("calibrant.engine.train.SEVERITIES", (1,))
    monkeypatch.setattr("calibrant.cli.train.SEVERITIES", (1,))


@pytest.fixture(scope="module")
def shifted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "shifted"
    return train(tiny(data__shift="true"), out=folder), folder


def test_train_shift_measures_every_corruption_and_severity(shifted):
    run, folder = shifted
    assert list(run.shift) == NAMES
    written = json.loads((folder / "shift.json").read_text())
    assert (written["seed"], list(written["sets"]), written["sets"]["contrast-5"]["n"]) == (0, NAMES, 4000)
    # By hand for one of them: the network sees the corrupted images, normalised as the clean ones.
    test = load_data(run.recipe.data).test
    images = corrupt(test.images, kind="gaussian_noise", severity=5).permute(0, 3, 1, 2)
    with torch.no_grad():
        logits = run.model((images / 255 - test.mean[0]) / test.std[0])
    wrong = float((logits.argmax(1) != test.labels).float().mean())
    assert run.shift["gaussian_noise-5"]["error"].value == pytest.approx(wrong, abs=1e-3)
    # Less contrast makes for more errors, severity by severity.
    errors = [run.shift[f"contrast-{severity}"]["error"].value for severity in (1, 3, 5)]
    assert errors[0] < errors[1] < errors[2]


def test_load_run_reads_the_scores_under_shift_back(shifted, mild):
    run, folder = shifted
    loaded = load_run(folder)
    assert numbers(loaded.shift) == numbers(run.shift)
    assert numbers(evaluate_shift(loaded)) == numbers(run.shift, severity=1)


def test_train_finished_run_is_evaluated_under_shift_when_asked_later(shifted, tmp_path, mild):
    plain = train(tiny(), out=tmp_path / "run")
    assert (plain.shift, load_run(tmp_path / "run").shift) == ({}, {})
    later = train(tiny(data__shift="true"), out=tmp_path / "run", resume=True)
    assert numbers(later.shift) == numbers(load_run(tmp_path / "run").shift) == numbers(shifted[0].shift, severity=1)
    before = (tmp_path / "run" / "shift.json").stat().st_mtime_ns
    train(tiny(data__shift="true"), out=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "shift.json").stat().st_mtime_ns == before


def test_train_killed_while_evaluating_under_shift_goes_on_to_the_same(shifted, tmp_path, monkeypatch, mild):
    with monkeypatch.context() as patch:
        patch.setattr("calibrant.engine.train.evaluate_shift", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(tiny(data__shift="true"), out=tmp_path / "run")
    assert not is_finished(tmp_path / "run")
    again = train(tiny(data__shift="true"), out=tmp_path / "run", resume=True)
    assert numbers(again.shift) == numbers(shifted[0].shift, severity=1)
    assert is_finished(tmp_path / "run")


def test_scale_run_measures_the_scaled_predictions_under_shift(shifted, tmp_path, mild):
    run, folder = shifted
    scaled = scale_run(folder, out=tmp_path / "ts")
    assert scaled.shift["contrast-1"]["error"].value == run.shift["contrast-1"]["error"].value
    assert scaled.shift["contrast-1"]["nll"].value != run.shift["contrast-1"]["nll"].value
    assert numbers(load_run(tmp_path / "ts").shift) == numbers(scaled.shift)


def test_cli_train_shift_prints_a_table(shifted, tmp_path, capsys, mild):
    code, out, err = call(capsys, *TINY, "--method", "ce", "--epochs", 2, "--shift", "--out", tmp_path / "r")
    assert (code, err) == (0, "")
    table = out.splitlines()[3:7]
    assert [line.split()[0] for line in table[1:]] == list(CORRUPTIONS)
    noise = shifted[0].shift["gaussian_noise-1"]
    assert table[1].split()[1:4] == [f"{100 * noise['error'].value:.2f}", "/", f"{100 * noise['ece'].value:.2f}"]
