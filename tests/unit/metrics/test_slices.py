"""Groups of examples by their columns."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant import Predictions, measure
from calibrant.metrics.measure import Slices, column_names

N = 1000
COLUMNS = {
    "site": np.array(["b", "a"] * (N // 2)),
    "light": np.repeat(["day", "night"], N // 2),
    "age": np.arange(N, dtype=np.float64),
    "day": np.arange("2024-01-01", "2030-01-01", dtype="M8[D]")[:N],
    "a,b": np.arange(N) % 3,
}


def grouped(*slice_by: str, **columns: object) -> dict[str, int]:
    predictions = Predictions(probs=np.full((N, 2), 0.5), labels=np.zeros(N), columns={**COLUMNS, **columns})
    slices = Slices(column_names(slice_by, [*predictions.columns], where="x"), predictions.columns, where="x")
    return {group.title: len(part) for group, part in sorted(slices.split(predictions), key=lambda found: found[0])}


def test_one_column_is_grouped_by_its_values_and_several_each_by_itself_or_crossed() -> None:
    assert grouped("site") == {"a": 500, "b": 500}
    assert grouped("site", "light", "site") == {"site: a": 500, "site: b": 500, "light: day": 500, "light: night": 500}
    crossed = {f"light: {light}, site: {site}": 250 for light in ("day", "night") for site in "ab"}
    assert grouped("light, site") == crossed
    assert grouped("a,b") == {"0": 334, "1": 333, "2": 333}


@pytest.mark.parametrize("write", [np.asarray, lambda values: values.astype(str)], ids=["as it is", "as text"])
def test_many_numbers_and_dates_are_cut_into_ranges(write: object) -> None:
    age = grouped("age", age=write(COLUMNS["age"]))  # type: ignore[operator]
    assert list(age) == ["up to 200", "200 – 400", "400 – 599", "599 – 799", "over 799"]
    assert sum(age.values()) == N
    day = grouped("day", day=write(COLUMNS["day"]))  # type: ignore[operator]
    assert list(day)[:2] == ["up to 2024-07-19", "2024-07-19 – 2025-02-04"]
    assert max(day.values()) - min(day.values()) <= 2


def test_what_is_missing_is_a_group_of_its_own_and_close_numbers_keep_their_digits() -> None:
    values = np.where(np.arange(N) < 10, np.nan, 1 + 1e-9 * np.arange(N))
    found = grouped("dose", dose=values)
    assert found["missing"] == 10
    assert len(found) == 6
    assert grouped("dose", dose=np.where(np.arange(N) < 10, "", values.astype(str)))["missing"] == 10
    sites = np.where(np.arange(N) < 10, "", "a")
    assert grouped("site", site=sites) == {"(empty)": 10, "a": 990}
    assert "site: (empty), light: day" in grouped("site,light", site=sites)


def test_a_group_that_weighs_nothing_is_left_out() -> None:
    weights = (COLUMNS["site"] == "a").astype(float)
    predictions = Predictions(probs=np.full((N, 2), 0.5), labels=np.zeros(N), weights=weights, columns=COLUMNS)
    assert list(measure(predictions, slice_by="site", n_resamples=100).slices) == ["a"]


def test_too_many_groups_and_unknown_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="x: columns to slice by must make at most 1000 groups"):
        grouped("name", "site", name=np.array([f"user{k}" for k in range(N)]))
    with pytest.raises(ValueError, match="unknown column of x 'sitee'. Did you mean 'site'"):
        grouped("light,sitee")
