from __future__ import annotations

from calibrant.grid.choices import choice_notes
from calibrant.grid.layout import Line

USUAL, OWN = ("train.average=no", "train.select=error"), ("train.average=phase", "train.select=error")
CE = Line("CE", "ce", {}, choices=USUAL)


def test_choice_notes_name_the_preset_only_where_lines_of_known_choices_share_a_label() -> None:
    own = Line("FLγ", "flgamma", {}, choices=OWN, preset="default")
    other = Line("FLγ", "flgamma", {}, preset="paper")
    # Of the other line nothing is told, so that nothing is to be told apart.
    told = "By preset, FLγ predicts with averaged weights (train.average=phase); all other runs with weights as they are."
    assert choice_notes([CE, own, other]) == [told]
    known = Line("FLγ", "flgamma", {}, choices=USUAL, preset="paper")
    (told,) = choice_notes([CE, own, known])
    assert told.startswith("By preset, FLγ (default) predicts with averaged weights")


def test_choice_notes_of_a_selection_without_words_name_its_key() -> None:
    own = Line("FLγ", "flgamma", {}, choices=("train.average=no", "train.select=brier"))
    (told,) = choice_notes([CE, Line("FL", "focal", {}, choices=USUAL), own])
    assert "FLγ predicts with weights of an epoch chosen in another way (train.select=brier)" in told
