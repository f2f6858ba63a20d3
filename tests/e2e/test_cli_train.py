"""`calibrant train` as typed: what it prints, what it writes, how it ends."""

import io
import json

import pytest
import torch
from rich.console import Console

import calibrant.cli.train as command
from calibrant.cli.main import run as run_command
from calibrant.cli.train import EpochDisplay
from calibrant.engine.folder import load_run
from calibrant.engine.network import load_weights, save_weights
from calibrant.engine.recipe import Recipe, override
from calibrant.engine.result import EpochRecord
from calibrant.engine.setup import assemble
from calibrant.engine.train import train, with_temperature

TINY = ["--data", "mixture", "--model", "mlp", "--device", "cpu", "--set", "train.batch_size=100"]


def call(*arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        run_command(["train", *map(str, arguments)])
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def test_cli_train_writes_a_run_and_says_what_came_of_it(tmp_path, capsys):
    code, out, err = call(*TINY, "--method", "flgamma-sece", "--epochs", 2, "--out", tmp_path / "r", capsys=capsys)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("epoch 1/2  loss ")
    assert all(word in lines[1] for word in ("epoch 2/2", "val error ", "ECE ", "gamma ", "images/s"))
    run = load_run(tmp_path / "r")
    metrics = json.loads((tmp_path / "r" / "metrics.json").read_text())["metrics"]
    assert f"test error {100 * metrics['error']['value']:.2f}%, ECE {100 * metrics['ece']['value']:.2f}%" in lines[2]
    assert f"epoch {run.best_epoch + 1} of 2 (lowest validation NLL near the lowest error)" in lines[2]
    assert lines[3].startswith(f"written to {tmp_path / 'r'}")


def test_cli_train_recipe_file_options_and_settings_go_on_top_of_each_other(tmp_path, capsys):
    file = tmp_path / "recipe.toml"
    file.write_text('seed = 5\ndata.name = "mixture"\nbackbone.name = "mlp"\nmethod.name = "focal"\ntrain.epochs = 3\n')
    settings = ("--epochs", 1, "--set", "optim.lr=0.02", "--set", "method.options.gamma=2", "--preset", "paper")
    code, _, _ = call(file, *settings, "--out", tmp_path / "r", capsys=capsys)
    recipe = load_run(tmp_path / "r").recipe
    assert code == 0
    assert (recipe.seed, recipe.train.epochs, recipe.optim.lr, recipe.method.preset) == (5, 1, 0.02, "paper")
    assert recipe.method.options == {"gamma": 2}


def test_cli_train_default_folder_is_named_after_the_run():
    recipe = override(
        Recipe(), {"data.name": "a/b.npz", "backbone.name": "my.nets:tiny", "method.name": "focal+ts", "seed": "3"}
    )
    assert str(command.default_folder(recipe)) == "runs/b.npz-tiny-focal+ts-seed3"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--data", "mixtur"], "unknown data set 'mixtur'. Did you mean 'mixture'?"),
        (["--method", "flgama-sece"], "unknown method 'flgama-sece'. Did you mean 'flgamma-sece'?"),
        (["--method", "ce+st"], "unknown method 'ce+st'"),
        (["--model", "mpl"], "unknown backbone 'mpl'. Did you mean 'mlp'?"),
        (["--model", "os:nothing"], "function or class of os, got 'nothing'"),
        (["--set", "train.graph=yes"], "`train.graph` must be 'auto' or 'no' on the CPU, got 'yes'"),
        (["--preset", "papr"], "`method.preset` must be one of 'default', 'paper', got 'papr'"),
        (["--device", "cuda:x"], "`device` must be 'auto', 'cpu', 'cuda' or 'cuda:1', got 'cuda:x'"),
        (["--epochs", "0"], "`train.epochs` must be a whole number >= 1, got 0"),
        (["--seed", "-1"], "`seed` must be a whole number from 0 to 2**63 - 1, got -1"),
        (["--set", "lr=1"], "`--set` must name a key with its part, got 'lr'. Did you mean 'optim.lr'?"),
        (["--set", "sed=1"], "unknown recipe key 'sed'. Did you mean 'seed'?"),
        (["--set", "optim.lrr=1"], "unknown key of optim 'lrr'. Did you mean 'lr'?"),
        (["--set", "optim.lr"], "`--set` must be KEY=VALUE, as in `--set optim.lr=0.2`, got 'optim.lr'"),
        (["--set", "optim.lr=-1"], "`optim.lr` must be a finite number > 0, got -1.0"),
        (["--set", "optim.lr=nan"], "`optim.lr` must be a finite number > 0, got nan"),
        (["--set", "train.clip_norm=-1"], "`train.clip_norm` must be a finite number >= 0, got -1.0"),
        (["--set", "data.val=2000"], "`val` + `meta` must leave examples to train on"),
        (["--set", "train.batch_size=5000"], "`train.batch_size` must be at most the 1600 training examples, got 5000"),
        (["--set", "data.meta=0"], "`data.meta` must be > 0 for a method that learns on held-out data, got 0"),
        (["--set", "backbone.freeze=hiden1"], "unknown part of the network 'hiden1'. Did you mean 'hidden1'?"),
        (["--set", "backbone.freeze=head"], "`backbone.freeze` must leave the head free for flgamma-sece"),
        (["--set", "method.options.evry=3"], "unknown option of flgamma-sece 'evry'. Did you mean 'every'?"),
        (["--set", "data.size=16"], "`data.size` must be left out for mixture; only pictures of a folder are resized"),
        (["--set", "data.size=0"], "`data.size` must be a whole number >= 1, got 0"),
        (["--set", "data.pad=-1"], "`data.pad` must be a finite number >= 0, got -1"),
        (["--set", "data.augment=no", "--set", "data.flip=yes"], "must be left out where `data.augment` is false"),
        (["--set", "train.average=swa"], "`train.average` must be one of 'auto', 'no', 'ema', 'uniform', 'phase', got 'swa'"),
        (
            ["--epochs", "3", "--set", "train.average=ema", "--set", "train.average_from_epoch=3"],
            "`train.average_from_epoch` must be below `train.epochs`, got 3 with 3 epochs: nothing would be averaged",
        ),
        (
            ["--method", "ce", "--set", "train.average_share=0.3"],
            "`train.average_share` must come with train.average=phase, got train.average=no",
        ),
        (["--set", "train.average_decay=1"], "`train.average_decay` must be in [0, 1), got 1.0"),
        (
            ["--set", "train.select=ece"],
            "`train.select` must be one of 'auto', 'error', 'nll', 'error+nll', 'error+ece', 'last'",
        ),
        (["--set", "method.options.betas=0.5,2"], "`betas` must be two numbers in [0, 1)"),
        (["--init", "no.safetensors"], "`no.safetensors` must be a file of weights (safetensors), got none there"),
        (["none.toml"], "`none.toml` must be a TOML file, got none there"),
        (["--set", "optim.nesterov=true", "--set", "optim.momentum=0"], "`optim.nesterov` must come with"),
    ],
)
def test_cli_train_bad_input_is_one_sentence_and_leaves_no_folder(arguments, sentence, tmp_path, capsys):
    code, out, err = call(*TINY, *arguments, "--out", tmp_path / "a" / "b", capsys=capsys)
    assert code == 2
    assert out == ""
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "a" / "b").exists()


def test_cli_train_diverging_run_says_what_to_change(tmp_path, capsys):
    wild = ("--method", "ce", "--epochs", 3, "--set", "optim.lr=1e30", "--set", "train.clip_norm=0")
    code, _, err = call(*TINY, *wild, "--out", tmp_path / "r", capsys=capsys)
    assert code == 2
    assert "the loss became" in err
    assert "Lower `optim.lr`" in err


def test_cli_train_interrupted_says_how_to_go_on_and_goes_on(tmp_path, capsys, monkeypatch):
    whole = train(override(Recipe(), dict(TINY_SETTINGS)))
    report = EpochDisplay.report

    def interrupt(self, record):
        report(self, record)
        if record.epoch == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(EpochDisplay, "report", interrupt)
    often = ("--set", "train.checkpoint_every_seconds=0")
    code, _, err = call(*TINY, *often, "--method", "ce", "--epochs", 4, "--out", tmp_path / "r", capsys=capsys)
    assert code == 130
    assert err == f"calibrant: interrupted. Go on with `calibrant train --resume --out {tmp_path / 'r'}`.\n"
    monkeypatch.setattr(EpochDisplay, "report", report)
    code, out, err = call("--resume", "--out", tmp_path / "r", capsys=capsys)
    assert (code, err) == (0, "")
    assert [line.split()[1] for line in out.splitlines()[:-2]] == ["3/4", "4/4"]
    assert load_run(tmp_path / "r").test.logits.equal(whole.test.logits)


def test_cli_train_interrupted_before_anything_was_written_says_so(tmp_path, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "train", interrupt)
    code, _, err = call(*TINY, "--method", "ce", "--out", tmp_path / "r", capsys=capsys)
    assert code == 130
    assert err == "calibrant: interrupted. Nothing was written yet.\n"


@pytest.mark.parametrize("options", [(), ("--device", "cpu", "--shift", "--set", "train.graph=no")])
def test_cli_train_resume_of_no_run_is_refused_unless_it_says_what_to_train(tmp_path, capsys, options):
    code, out, err = call("--resume", "--out", tmp_path / "first-rum", *options, capsys=capsys)
    assert (code, out) == (2, "")
    must = f"calibrant: train: `--resume` must find a run to go on with, got '{tmp_path / 'first-rum'}', which holds none."
    start = "To start one there, say what to train: a recipe, or options such as `--data` and `--method`."
    assert err == f"{must} {start}\n"
    assert not (tmp_path / "first-rum").exists()
    whole = (*TINY, "--method", "ce", "--epochs", 1, "--resume", "--out", tmp_path / "first-run")
    assert call(*whole, capsys=capsys)[0] == 0
    _, _, err = call("--resume", "--out", tmp_path / "first-rum", *options, capsys=capsys)
    assert err == f"{must} Did you mean '{tmp_path / 'first-run'}'? {start}\n"


def test_cli_train_resume_with_a_damaged_checkpoint_is_one_sentence(tmp_path, capsys):
    run = ("--out", tmp_path / "r")
    assert call(*TINY, "--method", "ce", "--epochs", 1, *run, capsys=capsys)[0] == 0
    facts = json.loads((tmp_path / "r" / "run.json").read_text())
    (tmp_path / "r" / "run.json").write_text(json.dumps(facts | {"finished": None}))
    (tmp_path / "r" / "state.pt").write_bytes(bytes(range(256)) * 4)
    code, out, err = call("--resume", *run, capsys=capsys)
    assert (code, out) == (2, "")
    assert err == (
        f"calibrant: train: `{tmp_path / 'r' / 'state.pt'}` must be a checkpoint of `calibrant train`, got a file that is "
        "damaged and cannot be read. Delete it to begin again at the first epoch, or start in another folder.\n"
    )
    (tmp_path / "r" / "state.pt").unlink()
    code, out, err = call("--resume", *run, capsys=capsys)
    assert (code, err) == (0, "")
    assert out.startswith("epoch 1/1 ")


TINY_SETTINGS = {
    "data.name": "mixture",
    "backbone.name": "mlp",
    "train.device": "cpu",
    "train.batch_size": "100",
    "method.name": "ce",
    "train.epochs": "4",
}


def test_cli_train_temperature_scaling_is_that_of_the_base_run(tmp_path, capsys):
    recipe = override(Recipe(), TINY_SETTINGS | {"train.epochs": "2"})
    base = train(recipe)
    code, out, _ = call(*TINY, "--method", "ce+ts", "--epochs", 2, "--out", tmp_path / "r", capsys=capsys)
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


def test_cli_train_init_starts_from_weights_and_says_if_the_head_does_not_fit(tmp_path, capsys):
    base = train(override(Recipe(), TINY_SETTINGS | {"train.epochs": "1"}))
    weights = tmp_path / "w.safetensors"
    save_weights(weights, base.model.state_dict(), {"a": torch.ones(2)}, notes={})
    assert load_weights(weights)[1]["a"].tolist() == [1, 1]
    recipe = override(Recipe(), TINY_SETTINGS | {"backbone.init": str(weights), "backbone.freeze": "hidden1"})
    built = assemble(recipe).model
    assert all(value.equal(base.model.state_dict()[name]) for name, value in built.state_dict().items())

    wide = base.model.state_dict() | {"head.weight": torch.zeros(7, 128), "head.bias": torch.zeros(7)}
    save_weights(weights, wide, {}, notes={})
    with pytest.warns(UserWarning, match="is for 7 classes and not used; the head for 4 starts from scratch"):
        built = assemble(recipe).model
    assert built.hidden2.weight.equal(base.model.hidden2.weight)
    assert built.head.weight.shape == (4, 128)

    save_weights(weights, {"other": torch.zeros(1)}, {}, notes={})
    code, _, err = call(*TINY, "--init", weights, "--out", tmp_path / "r", capsys=capsys)
    assert code == 2
    assert "`backbone.init` must hold the weights of this network" in err
    weights.write_bytes(b"nonsense")
    code, _, err = call(*TINY, "--init", weights, "--out", tmp_path / "r", capsys=capsys)
    assert code == 2
    assert "must be a safetensors file, got another kind or a damaged one" in err
    assert "Write the weights with `safetensors.torch.save_model(" in err


def test_train_frozen_layers_and_their_statistics_stay_as_they_are():
    settings = TINY_SETTINGS | {"backbone.name": "convnet", "backbone.freeze": "conv1,bn1", "train.epochs": "2"}
    recipe = override(Recipe(), settings)
    before = {name: value.clone() for name, value in assemble(recipe).model.state_dict().items()}
    after = train(recipe).model.state_dict()
    changed = {name.partition(".")[0] for name, value in after.items() if not value.equal(before[name])}
    assert changed == {"conv2", "bn2", "hidden", "head"}


def test_epoch_display_in_a_terminal_shows_one_live_line():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=140, color_system=None)
    with EpochDisplay(4, console=console) as display:
        display.tick(2, 1, 10)
        display._moved = 0.0
        display.tick(2, 9, 10)
        display.report(EpochRecord(2, 0.1, 0.5, val_error=0.25, val_ece=0.031, images_per_second=1234.5))
    shown = stream.getvalue()
    assert "epoch 3/4" in shown
    assert "loss 0.5000  val error 25.00%  ECE 3.10%  1,234 images/s" in shown
    assert " left" in shown


def test_epoch_display_in_a_narrow_terminal_cuts_no_number():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=72, color_system=None)
    with EpochDisplay(350, console=console) as display:
        display.tick(99, 1, 10)
        record = EpochRecord(99, 0.1, 0.5, val_error=0.25, val_ece=0.031, gamma_mean=1.0, gamma_std=0.1, images_per_second=1e4)
        display.report(record)
    last = [line for line in stream.getvalue().splitlines() if "epoch" in line][-1]
    assert "epoch 100/350 " in last
    assert "val error 25.00%  ECE 3.10%" in last
    assert "…" not in last
    assert "loss" not in last


def test_epoch_display_beside_the_first_process_is_silent(capsys):
    with EpochDisplay(2, shown=False) as display:
        display.tick(0, 1, 2)
        display.report(EpochRecord(0, 0.1, 0.5))
    assert capsys.readouterr().out == ""
