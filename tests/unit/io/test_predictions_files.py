"""Files of predictions: they come back exactly, whoever wrote them, and piece by piece."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from calibrant import Predictions
from calibrant.io import find_files, iter_prediction_batches, load_predictions, save_predictions, survey_predictions

ENDINGS = ("npz", "csv", "parquet", "pt")
TABLES = ("csv", "parquet")


def surveyed(path: Path) -> tuple[int, int, tuple[str, ...]]:
    found = survey_predictions(path)
    assert found is not None
    return found.rows, found.num_classes, found.columns


def scores_of(predictions: Predictions) -> Tensor:
    return predictions.logits if predictions.has_logits else predictions.probs


def rich_predictions(kind: str, dtype: torch.dtype, *, n: int = 40) -> Predictions:
    """A record with everything a record can have, and text that is easily taken for something else."""
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(n, 4, generator=generator, dtype=torch.float64)
    scores = (logits if kind == "logits" else logits.softmax(1)).to(dtype)
    if kind == "logits":
        scores[0, 1] = -torch.inf
    return Predictions(
        **{kind: scores},
        labels=torch.randint(0, 4, (n,), generator=generator),
        split="val",
        weights=torch.rand(n, generator=generator, dtype=torch.float64),
        class_names=["cat", "dog, big", 'say "ü"', "4"],
        columns={
            "zip": np.array(["007", "1e3", "true", "NA", ""] * (n // 5)),
            "note": np.array(["a,b", 'c"d', "two\nlines", " blank ", "ü"] * (n // 5)),
            "age": np.arange(n, dtype=np.int16),
            "old": np.arange(n) % 3 == 0,
            "dose": np.linspace(0, 1, n, dtype=np.float32),
            "day": np.arange("2024-01-01", "2025-01-01", dtype="M8[D]")[:n],
            "file": np.arange(n, dtype=np.uint32),
        },
    )


def assert_same(first: Predictions, second: Predictions) -> None:
    assert first.has_logits == second.has_logits
    assert scores_of(first).dtype == scores_of(second).dtype
    assert torch.equal(scores_of(first), scores_of(second))
    assert torch.equal(first.labels, second.labels)
    assert first.split == second.split
    assert first.class_names == second.class_names
    assert (first.weights is None) == (second.weights is None)
    if first.weights is not None and second.weights is not None:
        assert torch.equal(first.weights, second.weights)
    assert list(first.columns) == list(second.columns)
    for name, values in first.columns.items():
        assert values.dtype == second.columns[name].dtype, name
        assert np.array_equal(values, second.columns[name]), name


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kind", ["logits", "probs"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_save_everything_comes_back_exactly(tmp_path: Path, ending: str, kind: str, dtype: torch.dtype) -> None:
    predictions = rich_predictions(kind, dtype)
    path = tmp_path / f"x.{ending}"
    save_predictions(predictions, path)
    assert_same(predictions, load_predictions(path))
    if ending == "npz":
        save_predictions(predictions, tmp_path / "y.npz")
        assert path.read_bytes() == (tmp_path / "y.npz").read_bytes()


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("probs", [torch.rand(3, 3, generator=torch.Generator()).softmax(1), torch.eye(3, dtype=torch.float64)])
def test_save_bare_predictions_come_back_exactly(tmp_path: Path, ending: str, probs: Tensor) -> None:
    predictions = Predictions(probs=probs, labels=[0, 1, 2])
    predictions.save(tmp_path / f"x.{ending}")
    assert_same(predictions, Predictions.load(tmp_path / f"x.{ending}"))


def test_csv_foreign_columns_are_text_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(
        "p0, p1,label,split,id,dose,city,when\n"
        "0.25, 0.75,1.0,test,003,0.50,Oslo,2024-01-01\n\n"
        '0.5,0.5,0.0,test,004,,"Bern, CH",10:20\n',
        encoding="utf-8-sig",
    )
    predictions = load_predictions(path)
    assert predictions.labels.tolist() == [1, 0]
    assert predictions.split == "test"
    found = {name: values.tolist() for name, values in predictions.columns.items()}
    assert found == dict(id=["003", "004"], dose=["0.50", ""], city=["Oslo", "Bern, CH"], when=["2024-01-01", "10:20"])


@pytest.mark.parametrize("separator", [";", "\t"])
def test_csv_other_separators_are_understood(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text("p0,p1,label\n0.9,0.1,0\n0.2,0.8,0\n".replace(",", separator))
    assert load_predictions(path).labels.tolist() == [0, 0]


def test_csv_with_few_decimals_counts_as_float32(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("p0,p1,p2,label\n0.3333,0.3333,0.3333,0\n")
    assert load_predictions(path).probs.dtype == torch.float32
    path.write_text("p0,p1,p2,label\n0.1,0.2,0.7,0\n")
    assert load_predictions(path).probs.dtype == torch.float64


def test_npz_by_hand_with_further_keys_keeps_only_columns(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "x.npz",
        logits=np.array([[1, 2.0], [3, 4]], dtype=">f4"),
        labels=np.array([0.0, 1.0]),
        split="test",
        class_names=["a", "b"],
        site=np.array([b"x", b"y"]),
        features=np.zeros((2, 7)),
        epoch=np.array(3),
    )
    predictions = load_predictions(tmp_path / "x.npz")
    assert predictions.class_names == ("a", "b")
    assert {name: values.tolist() for name, values in predictions.columns.items()} == {"site": ["x", "y"]}
    assert predictions.logits.dtype == torch.float32
    assert predictions.logits.tolist() == [[1, 2], [3, 4]]


def test_npz_dense_predictions_are_flattened(tmp_path: Path) -> None:
    labels = np.array([[[0, 1], [255, 0]]])
    np.savez(tmp_path / "x.npz", logits=np.random.default_rng(0).normal(size=(1, 2, 2, 2)), labels=labels)
    assert load_predictions(tmp_path / "x.npz", ignore_index=255).labels.tolist() == [0, 1, 0]


def test_pt_by_hand_with_lists_and_bfloat16(tmp_path: Path) -> None:
    logits = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    torch.save({"logits": logits, "labels": [0, 1, 1], "city": ["a", "b", "c"], "config": {"lr": 0.1}}, tmp_path / "x.pt")
    predictions = load_predictions(tmp_path / "x.pt")
    assert predictions.logits.dtype == torch.bfloat16
    assert not predictions.logits.requires_grad
    assert predictions.columns["city"].tolist() == ["a", "b", "c"]


def test_parquet_with_list_category_decimal_and_missing_cells(tmp_path: Path) -> None:
    table = pa.table(
        {
            "probs": pa.array([[0.9, 0.1], [0.2, 0.8]], pa.list_(pa.float32())),
            "label": pa.array(["0", "1"]),
            "site": pa.array(["x", None]).dictionary_encode(),
            "age": pa.array([3, None]),
            "blob": pa.array([b"x", b"y"]),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    predictions = load_predictions(tmp_path / "x.parquet")
    assert predictions.probs.dtype == torch.float32
    assert predictions.labels.tolist() == [0, 1]
    assert list(predictions.columns) == ["site", "age"]
    assert predictions.columns["site"].tolist() == ["x", ""]
    assert np.isnan(predictions.columns["age"][1])
    assert surveyed(tmp_path / "x.parquet") == (2, 2, ("site", "age", "blob"))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("batch_rows", [1, 7, 1000])
def test_iter_batches_together_are_the_whole(tmp_path: Path, ending: str, batch_rows: int) -> None:
    whole = rich_predictions("probs", torch.float32)
    path = tmp_path / f"x.{ending}"
    whole.save(path)
    batches = list(iter_prediction_batches(path, batch_rows=batch_rows))
    assert all(len(batch) == batch_rows for batch in batches[:-1])
    assert torch.equal(torch.cat([batch.probs for batch in batches]), whole.probs)
    assert torch.equal(torch.cat([batch.labels for batch in batches]), whole.labels)
    assert np.concatenate([batch.columns["zip"] for batch in batches]).tolist() == whole.columns["zip"].tolist()
    assert {batch.class_names for batch in batches} == {whole.class_names}


def test_iter_batches_csv_reads_only_the_columns_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("p0,p1,label,a,b\n" + "0.5,0.5,0,1,x\n" * 10)
    batches = list(iter_prediction_batches(path, batch_rows=4, columns=["b"]))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert [list(batch.columns) for batch in batches] == [["b"]] * 3


def test_iter_batches_leaves_out_pieces_that_are_all_ignored_or_weigh_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("p0,p1,label\n0.5,0.5,-1\n0.5,0.5,-1\n0.4,0.6,1\n")
    batches = list(iter_prediction_batches(path, batch_rows=2, ignore_index=-1))
    assert [batch.labels.tolist() for batch in batches] == [[1]]
    path.write_text("p0,p1,label,weight\n0.5,0.5,0,0\n0.5,0.5,0,0\n0.4,0.6,1,2\n")
    load_predictions(path).save(tmp_path / "x.npz")
    for file in (path, tmp_path / "x.npz"):
        assert [batch.labels.tolist() for batch in iter_prediction_batches(file, batch_rows=2)] == [[1]]


def test_iter_batches_error_names_the_row_and_a_survey_estimates_their_number(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("p0,p1,label\n" + "0.5,0.5,0\n" * 5 + "nan,0.5,0\n")
    with pytest.raises(ValueError, match="nan in row 5"):
        list(iter_prediction_batches(path, batch_rows=2))
    with pytest.raises(ValueError, match="`batch_rows` must be a whole number >= 1, got 0"):
        next(iter_prediction_batches(path, batch_rows=0))
    path.write_text("p0,p1,label\n" + "0.5,0.5,0\n" * 100_000)
    survey = survey_predictions(path)
    assert survey is not None
    assert survey.rows == pytest.approx(100_000, rel=0.1)


@pytest.mark.parametrize("ending", TABLES)
def test_survey_counts_rows_classes_and_columns(tmp_path: Path, ending: str) -> None:
    rich = rich_predictions("probs", torch.float32)
    Predictions(probs=rich.probs, labels=rich.labels, columns={"age": rich.columns["age"]}).save(tmp_path / f"x.{ending}")
    assert surveyed(tmp_path / f"x.{ending}") == (40, 4, ("age",))
    rich.save(tmp_path / "x.npz")
    assert survey_predictions(tmp_path / "x.npz") is None


@pytest.mark.parametrize("ending", [".npz", ".pt"])
@pytest.mark.parametrize("shape", [(3,), (3, 1)])
@pytest.mark.parametrize("kind", ["probs", "logits"])
def test_load_one_score_for_each_example_is_a_binary_problem(
    tmp_path: Path, ending: str, shape: tuple[int, ...], kind: str
) -> None:
    path = tmp_path / f"binary{ending}"
    given = {kind: torch.tensor([0.25, 0.5, 0.75]).reshape(shape), "labels": torch.tensor([0, 1, 1])}
    torch.save(given, path) if ending == ".pt" else np.savez(path, **{key: value.numpy() for key, value in given.items()})
    expected = Predictions.from_binary(**{kind: [0.25, 0.5, 0.75], "labels": [0, 1, 1]})  # type: ignore[arg-type]
    torch.testing.assert_close(load_predictions(path).probs.double(), expected.probs.double(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("ending", TABLES)
@pytest.mark.parametrize("name", ["score", "prob", "p", "p1", "y_score", "logit", "logit1"])
def test_one_score_column_is_the_positive_class_of_a_binary_problem(tmp_path: Path, ending: str, name: str) -> None:
    path, table = tmp_path / f"x.{ending}", pa.table({name: [0.25, 0.5, 0.75], "label": [0, 1, 1], "age": [1, 2, 3]})
    pacsv.write_csv(table, path) if ending == "csv" else pq.write_table(table, path)
    kind = "logits" if name.startswith("logit") else "probs"
    expected = Predictions.from_binary(**{kind: [0.25, 0.5, 0.75], "labels": [0, 1, 1]})  # type: ignore[arg-type]
    pieces = list(iter_prediction_batches(path, batch_rows=2))
    for found in (load_predictions(path).probs, torch.cat([piece.probs for piece in pieces])):
        torch.testing.assert_close(found, expected.probs.double(), rtol=0, atol=1e-12)
    assert surveyed(path) == (3, 2, ("age",))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", ["a/x.csv", "b=1/c=2%2F3/x.parquet", "y.npz"]),
        ("*", ["a/x.csv", "b=1/c=2%2F3/x.parquet", "y.npz"]),
        ("*/x.csv", ["a/x.csv"]),
        ("**/x.*", ["a/x.csv", "b=1/c=2%2F3/x.parquet"]),
        ("b=*", ["b=1/c=2%2F3/x.parquet"]),
        ("_old/*", ["_old/x.csv"]),
        ("y.npz", ["y.npz"]),
    ],
)
def test_find_files_in_folders_and_by_patterns(tmp_path: Path, path: str, expected: list[str]) -> None:
    for name in ("a/x.csv", "a/x.txt", "a/.x.csv", "b=1/c=2%2F3/x.parquet", "_old/x.csv", "y.npz"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [str(file) for file in find_files(tmp_path / path)] == [str(tmp_path / name) for name in expected]
    with pytest.raises(FileNotFoundError, match="got none. A folder is read with its sub-folders"):
        find_files(tmp_path / "*.parquet")


@pytest.mark.parametrize("name", ["run::1.npz", "file:x.csv"])
def test_file_whose_name_looks_like_an_address_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    Predictions(probs=torch.eye(2), labels=[0, 1]).save(name)
    assert load_predictions(name).labels.tolist() == [0, 1]


@pytest.mark.parametrize("ending", ENDINGS)
def test_folders_of_partitions_make_columns(tmp_path: Path, ending: str) -> None:
    for number in (1, 2):
        folder = tmp_path / f"site=a%2F{number}" / "day=2024-01-01"
        folder.mkdir(parents=True)
        rich_predictions("probs", torch.float32, n=10 * number).save(folder / f"x.{ending}")
    pieces = list(iter_prediction_batches(tmp_path, columns=["site", "zip"]))
    assert [piece.columns["site"].tolist() for piece in pieces] == [["a/1"] * 10, ["a/2"] * 20]
    assert pieces[0].columns["zip"].tolist() == ["007", "1e3", "true", "NA", ""] * 2
    everything = next(iter_prediction_batches(tmp_path, batch_rows=1))
    assert everything.columns["day"].tolist() == ["2024-01-01"]


def test_save_like_a_file_keeps_names_of_weights_but_not_of_scores_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("y,sample_weight,logit0,logit1\n1,2.0,0.5,0.25\n")
    given = load_predictions(tmp_path / "x.csv")
    for scores, names in (({"logits": given.logits}, ["logit0", "logit1"]), ({"probs": given.probs}, ["p0", "p1"])):
        save_predictions(given.replace(**scores), tmp_path / "new.csv", like=tmp_path / "x.csv")
        head = (tmp_path / "new.csv").read_text().splitlines()[0].split(",")
        assert sorted(head) == sorted(["y", "sample_weight", *names])
        assert load_predictions(tmp_path / "new.csv").probs.equal(given.probs)
