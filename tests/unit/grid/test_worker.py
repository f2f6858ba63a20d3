import sys

import calibrant.engine.train as engine
from calibrant.engine.recipe import recipe_of, to_dict
from calibrant.grid.worker import run_task


def test_run_task_gives_the_run_its_command_word_by_word(tmp_path, monkeypatch):
    seen, sent = [], []

    def train(recipe, **_):
        seen.append(list(sys.argv))
        raise ValueError("enough")

    monkeypatch.setattr(sys, "argv", ["worker"])
    monkeypatch.setattr(engine, "train", train)
    recipe = recipe_of({"data": {"name": "/data/my pictures"}, "train": {"epochs": 3, "device": "cpu"}})
    run_task({"recipe": to_dict(recipe), "folder": str(tmp_path / "run"), "base": None}, send=sent.append)
    assert sent == [{"kind": "failed", "text": "enough", "again": False, "memory": False}]
    assert seen[0][:4] == ["calibrant", "train", "--data", "/data/my pictures"]
    assert seen[0][-2:] == ["--set", "train.device=cpu"]
