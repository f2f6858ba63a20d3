"""Files that cannot be read: one sentence that names the file, and never a line of theirs is run."""

from __future__ import annotations

import io
import os
import pickle
import re
import resource
import subprocess
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from calibrant import Predictions
from calibrant.io import iter_prediction_batches, load_class_names, load_predictions, save_predictions
from calibrant.io.files import atomic_writer

ENDINGS = ("npz", "csv", "parquet", "pt")
EYE = np.eye(2)


class Hostile:
    """Unpickling one of these makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.folder,)


def message_of(path: Path, load: Callable[[Path], object] = load_predictions) -> str:
    with pytest.raises((ValueError, OSError)) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def read_in_pieces(path: Path) -> None:
    for _ in iter_prediction_batches(path, batch_rows=1):
        pass


@pytest.fixture
def good(tmp_path: Path) -> Predictions:
    generator = torch.Generator().manual_seed(0)
    predictions = Predictions(probs=torch.rand(3000, 3, generator=generator).softmax(1), labels=torch.arange(3000) % 3)
    for ending in ENDINGS:
        predictions.save(tmp_path / f"good.{ending}")
    return predictions


@pytest.mark.parametrize("name", ["x.pt", "x.npz", "zip.pt"])
def test_hostile_pickle_is_refused_and_not_run(tmp_path: Path, name: str) -> None:
    trap, path = tmp_path / "trap", tmp_path / name
    if name == "zip.pt":
        torch.save({"logits": torch.eye(2), "labels": Hostile(trap)}, path)
    else:
        path.write_bytes(pickle.dumps(Hostile(trap)))
    message = message_of(path)
    assert not trap.exists()
    assert "could run code" in message or "damaged" in message
    pickle.loads(pickle.dumps(Hostile(trap)))
    assert trap.exists()  # the trap does work where nobody is careful


@pytest.mark.parametrize("key", ["labels", "logits", "city", "calibrant", "split"])
def test_npz_object_array_is_refused_and_not_run(tmp_path: Path, key: str) -> None:
    trap, path = tmp_path / "trap", tmp_path / "x.npz"
    hostile = np.empty(2, dtype=object)
    hostile[:] = [Hostile(trap), Hostile(trap)]
    np.savez(path, **{"logits": EYE, "labels": np.array([0, 1]), key: hostile})
    assert "could run code" in message_of(path)
    assert not trap.exists()


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("load", [load_predictions, read_in_pieces])
def test_load_half_a_file_says_so(tmp_path: Path, good: Predictions, ending: str, load: Callable[[Path], object]) -> None:
    content = (tmp_path / f"good.{ending}").read_bytes()
    path = tmp_path / f"cut.{ending}"
    path.write_bytes(content[: len(content) // 2])
    message = message_of(path, load)
    assert "damaged" in message or "CSV parse error" in message


@pytest.mark.parametrize("ending", ENDINGS)
def test_load_other_bytes_and_none_say_so(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x.{ending}"
    path.write_bytes("p0,p1,label,city\n1,0,0,Zürich\n".encode("latin-1") if ending == "csv" else bytes(range(256)))
    assert any(said in message_of(path) for said in ("damaged", "UTF-8", "could run code"))
    path.write_bytes(b"")
    assert "got an empty file" in message_of(path)


def test_load_missing_file_or_folder_says_so(tmp_path: Path) -> None:
    for path in (tmp_path / "zzz.csv", tmp_path / "nowhere" / "x.csv"):
        assert f"there is no such file. Looked in {path.parent}" in message_of(path)
    assert "got a folder" in message_of(tmp_path)


@pytest.mark.parametrize("name", ["x.cvs", "x", "x.csv.gz"])
def test_load_another_ending_lists_those_there_are(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    assert "must end in .npz, .csv, .parquet, .pt" in message_of(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"labels": [0]}, "must hold either `logits` or `probs` .* got labels"),
        ({"probs": EYE, "city": [1, 2]}, "must hold `labels` .* got probs, city"),
        ({"probs": EYE, "logits": EYE, "labels": [0, 1]}, "once, got probs, logits"),
        ({"probs": EYE, "labels": [0, 1], "label": [0, 1]}, "once, got probs, labels, label"),
        ({"probs": EYE, "labels": ["cat", "dog"]}, "class indices 0, 1, 2, …, got 'cat'"),
        ({"probs": EYE, "labels": [0, 0.5]}, "got 0.5 in row 1"),
        ({"probs": EYE, "labels": [0, -1]}, r"\[0, 1\], got -1. Pass `ignore_index=-1` .* \(`--ignore-index -1`\)"),
        ({"probs": EYE * 0.9, "labels": [0, 1]}, "must sum to 1 .* Normalise"),
        ({"probs": [[np.nan, 1], [0, 1]], "labels": [0, 1]}, "`probs` must be finite, got nan in row 0"),
        ({"logits": [["a", "b"]], "labels": [0]}, "`logits` must be .* numbers"),
        ({"logits": np.ones((0, 2)), "labels": np.zeros(0)}, "at least one example"),
        ({"logits": EYE, "labels": [0, 1], "split": ["val", "test"]}, "the same in every row, got test, val"),
        ({"logits": EYE, "labels": [0, 1], "weights": ["a", "b"]}, "`weights` must be .* numbers"),
        ({"logits": EYE, "labels": [0, 1], "class_names": ["a"]}, "`class_names` must hold C = 2 names, got 1"),
    ],
)
def test_npz_bad_content_says_what_and_where(tmp_path: Path, content: dict[str, object], said: str) -> None:
    np.savez(tmp_path / "x.npz", **{key: np.asarray(value) for key, value in content.items()})
    assert re.search(said, message_of(tmp_path / "x.npz"))


CSV_CASES = [
    ("p0,p1,label\n", "at least one row"),
    ("0.1,0.9,1\n0.2,0.8,1\n", "got 0.1, 0.9, 1"),
    ("p0,p1,city\n1,0,x\n", "must hold `labels` (in a table column `label`, or"),
    ("a,b,label\n1,0,0\n", "either `logits` or `probs`"),
    ("p0,p2,p4,label\n1,0,0,0\n", "without a gap"),
    ("p0,label\n1,0\n", "must be two or more"),
    ("score,prob,label\n1,0,0\n", "must hold scores of one kind, got `prob` and `score`"),
    ("p0,p1,p99999999999,label\n1,0,0,0\n", "without a gap"),
    ("p0,p0,label\n1,0,0\n", "a name of its own"),
    ("p0,p1,label\n0.5,0.5,0\n1,x,0\n", "scores and weights, got: 'x' in line 3."),
    ("p0;p1;label\n0,9;0,1;0\n", "numbers such as 0.25 for scores and weights, got: '0,9' in line 2."),
    ("score,label\n96.64,1\n", "got values from 96.64 to 96.64. Divide percentages by 100"),
    ("p0,p1,p2,label\n1.3,0,0,1\n", "got values from 0 to 1.3."),
    ("p0,p1,label\n1,0,cat\n", "class indices 0, 1, 2, …, got 'cat' in row 0. Give indices"),
    ("p0,p1,label,weight,sample_weight\n1,0,0,1,1\n", "once, got"),
    ("p0,p1,label\n1,0\n", "Row #2: Expected 3 columns, got 2"),
    ("p0,p1,label,calibrant\n1,0,0,{\n", "`calibrant` must hold what `save_predictions` wrote"),
    ('p0,p1,label,calibrant\n1,0,0,"{""dtype"": ""int8""}"\n', "`calibrant` must hold what"),
    ('p0,p1,label,a,calibrant\n1,0,0,x,"{""columns"": {""a"": ""O""}}"\n', "`calibrant` must hold what"),
]


@pytest.mark.parametrize(("text", "said"), CSV_CASES)
@pytest.mark.parametrize("load", [load_predictions, read_in_pieces])
def test_csv_bad_content_says_what_and_where(tmp_path: Path, text: str, said: str, load: Callable[[Path], object]) -> None:
    (tmp_path / "x.csv").write_text(text)
    assert said in message_of(tmp_path / "x.csv", load)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"p0": [0.5], "p1": ["x"], "label": [0]}, "`p1` must hold numbers, got string"),
        ({"p0": [[0.5]], "p1": [0.5], "label": [0]}, "`p0` must hold numbers, got list"),
        ({"probs": [[0.5, 0.5], [1.0]], "label": [0, 1]}, "one score for each class"),
        ({"p0": [0.5], "p1": [0.5], "probs": [[0.5, 0.5]], "label": [0]}, "must hold scores of one kind, got `probs` and `p0`"),
        ({"p0": pa.array([], "float64"), "p1": pa.array([], "float64")}, "at least one row"),
    ],
)
def test_parquet_bad_content_says_what_and_where(tmp_path: Path, columns: dict[str, list[object]], said: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    assert said in message_of(tmp_path / "x.parquet")


def test_pt_that_is_no_dict_says_so(tmp_path: Path) -> None:
    torch.save(torch.eye(2), tmp_path / "x.pt")
    assert "must hold a dict with `logits` or `probs` and `labels`, got Tensor" in message_of(tmp_path / "x.pt")
    torch.save({"logits": torch.eye(2).to_sparse(), "labels": [0, 1]}, tmp_path / "x.pt")
    assert "must be a dense tensor" in message_of(tmp_path / "x.pt")


@pytest.mark.parametrize("ending", ["npz", "pt"])
def test_file_with_a_flipped_bit_is_refused(tmp_path: Path, good: Predictions, ending: str) -> None:
    content = bytearray((tmp_path / f"good.{ending}").read_bytes())
    for place in np.random.default_rng(0).integers(1000, len(content) - 3000, 10):
        content[place] ^= 1
        (tmp_path / f"x.{ending}").write_bytes(content)
        assert "damaged" in message_of(tmp_path / f"x.{ending}")
        content[place] ^= 1


def test_pt_that_claims_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"logits": torch.ones(1).expand(10**10, 10), "labels": torch.ones(1, dtype=torch.int64).expand(10**10)}, path)
    assert path.stat().st_size < 3000
    assert "`logits` must be a dense tensor that holds every value" in message_of(path)
    torch.save({"logits": torch.ones(2, 3, device="meta"), "labels": torch.zeros(2, dtype=torch.int64)}, path)
    assert "`logits` must be a dense tensor that holds every value" in message_of(path)


def test_npz_that_claims_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    path, header = tmp_path / "x.npz", io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**12, 10)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("logits.npy", header.getvalue())
    assert "damaged" in message_of(path)


def test_npz_unused_key_is_not_inflated(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, logits=EYE, labels=np.array([0, 1]), cache=np.zeros((2000, 2000)), city=np.array(["a", "b"]))
    tracemalloc.start()
    assert list(load_predictions(path).columns) == ["city"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6  # the key takes 32 MB


@pytest.mark.parametrize(
    "bomb",
    [
        {"split": np.zeros(10**7, dtype="S1")},
        {"split": np.array("x" * 10**6)},
        {"class_names": np.array(["a", "b" * 10**6])},
        {"weights": np.ones(4 * 10**6)},
        {"labels": np.zeros(4 * 10**6)},
        {"city": np.array(["a", "b" * 10**6])},
    ],
    ids=lambda bomb: next(iter(bomb)),
)
def test_npz_key_of_more_than_the_scores_is_not_inflated(tmp_path: Path, bomb: dict[str, object]) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, **{"logits": EYE, "labels": np.array([0, 1])} | bomb)
    tracemalloc.start()
    assert f"`{next(iter(bomb))}` must not hold more than `logits`" in message_of(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_wide_table_takes_time_in_proportion_to_its_width(tmp_path: Path, ending: str) -> None:
    width, path = 20_000, tmp_path / f"x.{ending}"
    Predictions(logits=torch.zeros(2, width), labels=[0, width - 1]).save(path)
    start = time.process_time()
    assert load_predictions(path).num_classes == width
    assert time.process_time() - start < 5  # 32 s when it was quadratic


def test_class_names_that_repeat_are_refused_where_labels_are_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", probs=EYE, labels=np.array(["a", "a"]), class_names=np.array(["a", "a"]))
    assert "`class_names` must differ" in message_of(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("name", "values", "rule"),
    [("label", [1, 2], "column `label`"), ("logit12", [1, 2], "name of its own"), ("z", [1j, 2], "`z` must hold numbers")],
)
def test_save_column_that_could_not_be_read_back_raises(tmp_path: Path, name: str, values: list[complex], rule: str) -> None:
    predictions = Predictions(probs=EYE, labels=[0, 1], columns={name: np.array(values)})
    with pytest.raises(ValueError, match=rule):
        save_predictions(predictions, tmp_path / "x.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", ENDINGS)
def test_save_that_fails_leaves_the_old_file(
    tmp_path: Path, good: Predictions, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"good.{ending}"
    before, names = path.read_bytes(), sorted(entry.name for entry in tmp_path.iterdir())

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"cannot be written \(No space left on device\)"):
        save_predictions(good.subset(torch.arange(10)), path)
    assert path.read_bytes() == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == names


@pytest.mark.parametrize("ending", ENDINGS)
def test_save_on_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path, ending: str) -> None:
    predictions = Predictions(probs=np.tile(EYE, (500, 1)), labels=[0, 1] * 500)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match=rf"x.{ending}: cannot be written"):
            predictions.save(tmp_path / f"x.{ending}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from calibrant.io.files import atomic_writer
with atomic_writer(sys.argv[1]) as handle:
    handle.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_save_removes_what_a_killed_one_left_but_not_what_another_writes_now(tmp_path: Path, good: Predictions) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    subprocess.run([sys.executable, "-c", KILLED, str(folder / "[x].npz")], check=False)
    assert len(list(folder.iterdir())) == 1
    with atomic_writer(folder / "[x].npz") as handle:
        handle.write(b"first")
        good.save(folder / "[x].npz")
    assert [file.name for file in folder.iterdir()] == ["[x].npz"]
    assert (folder / "[x].npz").read_bytes() == b"first"


@pytest.mark.parametrize("ending", ["npz", "pt"])
def test_file_that_memory_does_not_hold_is_not_called_damaged(
    tmp_path: Path, good: Predictions, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, too_much in ((np, lambda *_, **__: np.empty(10**17)), (torch, lambda *_, **__: torch.empty(10**17))):
        monkeypatch.setattr(module, "load", too_much)
    with pytest.raises(MemoryError, match=rf"good.{ending}: holds more than memory"):
        load_predictions(tmp_path / f"good.{ending}")


def test_save_through_a_link_replaces_what_it_points_to(tmp_path: Path, good: Predictions) -> None:
    link = tmp_path / "link.npz"
    link.symlink_to(tmp_path / "good.npz")
    save_predictions(good.subset(torch.arange(10)), link)
    assert link.is_symlink()
    assert len(load_predictions(tmp_path / "good.npz")) == 10


def test_save_into_missing_folder_or_onto_folder_says_so(tmp_path: Path, good: Predictions) -> None:
    with pytest.raises(FileNotFoundError, match="must exist"):
        save_predictions(good, tmp_path / "nowhere" / "x.npz")
    (tmp_path / "x.npz").mkdir()
    with pytest.raises(IsADirectoryError, match="x.npz: cannot be written"):
        save_predictions(good, tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("name", "text", "names"),
    [
        ("names.txt", "cat\n big dog \n\nü\n", ("cat", "big dog", "", "ü")),
        ("names.json", '["cat", "dog"]', ("cat", "dog")),
        ("names.json", '{"1": "dog", "0": "cat"}', ("cat", "dog")),
        ("config.json", '{"model_type": "bert", "id2label": {"0": "cat", "1": "dog"}}', ("cat", "dog")),
    ],
)
def test_class_names_from_lines_json_and_transformers(tmp_path: Path, name: str, text: str, names: tuple[str, ...]) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert load_class_names(tmp_path / name) == names


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("names.json", b'{"cat": 0, "dog": 1}', "JSON list"),
        ("names.json", b"{", "JSON list"),
        ("names.json", b"[]", "JSON list"),
        ("names.json", b"[1]", "JSON list"),
        ("names.json", b"[" * 10**5, "JSON list"),
        ("names.txt", b"", "got an empty file"),
        ("names.txt", b" \n", "one class name a line"),
        ("names.txt", b"\xff\xfe\x00", "must be UTF-8 text"),
    ],
    ids=str,
)
def test_class_names_of_another_kind_are_one_sentence(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert said in message_of(tmp_path / name, load_class_names)
