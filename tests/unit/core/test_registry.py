from __future__ import annotations

import math
from importlib.metadata import EntryPoint

import pytest

from calibrant.core.checks import Registry, lookup

TABLE = {"guo2017": 1, "netcal": 2}


def test_lookup_known_name_returns_its_entry() -> None:
    assert lookup(TABLE, "netcal", kind="convention") == 2


def test_lookup_misspelt_name_suggests_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"^unknown convention 'netcall'. Did you mean 'netcal'\? There are: guo2017, netcal\.$"
    ):
        lookup(TABLE, "netcall", kind="convention")


def test_lookup_strange_name_lists_all_without_a_guess() -> None:
    with pytest.raises(ValueError, match=r"^unknown convention 'zzz'. There are: guo2017, netcal\.$"):
        lookup(TABLE, "zzz", kind="convention")


def test_lookup_suggests_a_name_written_otherwise_only_in_capitals() -> None:
    with pytest.raises(ValueError, match=r"^unknown method 'CE'\. Did you mean 'ce'\?"):
        lookup({"ce": 1, "flsd": 2}, "CE", kind="method")
    with pytest.raises(ValueError, match=r"^unknown column 'TEAM'\. Did you mean 'Team'\?"):
        lookup({"Team": 1, "place": 2}, "TEAM", kind="column")


def test_lookup_suggests_names_that_may_be_meant_without_listing_them() -> None:
    with pytest.raises(ValueError, match=r"^unknown method 'ce\+tss'\. Did you mean 'ce\+ts'\? There are: ce, flsd\.$"):
        lookup({"ce": 1, "flsd": 2}, "ce+tss", kind="method", also=["ce+ts", "flsd+ts"])


def offer(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    points = [EntryPoint(name, value, "calibrant.numbers") for name, value in values.items()]
    monkeypatch.setattr("calibrant.core.checks.entry_points", lambda group: points)


def test_registry_lists_offered_names_without_loading_them(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, tau="no_such_module:tau", pi="math:pi", one="math:e")
    numbers = Registry("number", "calibrant.numbers", {"one": 1.0}, of=float)
    assert list(numbers) == ["one", "tau", "pi"]
    assert "tau" in numbers
    assert "three" not in numbers
    assert len(numbers) == 3
    assert (numbers["one"], numbers["pi"]) == (1.0, math.pi)
    with pytest.raises(ValueError, match=r"number 'tau'.*ModuleNotFoundError"):
        numbers["tau"]
    with pytest.warns(UserWarning, match="number 'tau'"):
        assert numbers.available() == {"one": 1.0, "pi": math.pi}


def test_registry_refuses_an_offer_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, two="math:floor")
    with pytest.raises(ValueError, match=r"number 'two'.*must be a float"):
        Registry("number", "calibrant.numbers", {}, of=float)["two"]


def test_registry_unknown_name_suggests_among_all(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, pi="math:pi")
    with pytest.raises(ValueError, match=r"'pie'. Did you mean 'pi'\? There are: one, pi\."):
        Registry("number", "calibrant.numbers", {"one": 1.0}, of=float)["pie"]
