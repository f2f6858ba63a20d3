from __future__ import annotations

import pytest

from calibrant.core.lookup import lookup

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
