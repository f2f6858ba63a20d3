"""The tables of docs/losses.md come from those of the losses; run this file to write them."""

from __future__ import annotations

from pathlib import Path

from calibrant.losses.catalogue import losses_page

PAGE = Path(__file__).parents[3] / "docs" / "losses.md"


def test_page_of_the_losses_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == losses_page(page), f"write it anew: python {__file__}"


if __name__ == "__main__":
    PAGE.write_text(losses_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
