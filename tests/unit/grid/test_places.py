"""How runs are shared out between GPUs, and when one more is let onto one."""

from __future__ import annotations

import pytest

from calibrant.grid.local import Place, make_places


@pytest.mark.parametrize(("jobs", "limits"), [(1, [1]), (3, [1, 1, 1]), (4, [2, 1, 1]), (5, [2, 2, 1]), (6, [2, 2, 2])])
def test_make_places_shares_the_jobs_out_between_gpus(jobs: int, limits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrant.grid.local.visible_gpus", lambda device: ["0", "1", "2"])
    places = make_places(device="cuda", jobs=jobs, threads=1)
    assert [place.limit for place in places] == [place.most for place in places] == limits


@pytest.mark.parametrize(("free", "limit"), [(12_499, 2), (12_500, 3)])
def test_place_lets_one_more_run_on_a_gpu_only_where_the_largest_would_fit_once_more(free: int, limit: int) -> None:
    place = Place("0", 2, 4)
    place.measured("large", 10_000, 0, running=["large", "small"])
    # A quarter more than the largest needs must be free.
    place.measured("small", 1_000, free, running=["large", "small"])
    assert place.limit == limit
