from __future__ import annotations

from collections import Counter

import pytest

from calibrant.engine.methods import METHODS
from calibrant.report.rows import Style, method_name, plain_text, styles_of
from calibrant.report.save import fold_text


def home(method: str) -> Style:
    """How a method looks where no other one is."""
    return styles_of([(method, "")])[method, ""]


METHOD_STYLES = {method: home(method) for method in METHODS}


def test_methods_differ_in_marker_and_in_line_from_others_of_their_colour() -> None:
    for key in ("marker", "line"):
        looks = Counter((style.color, getattr(style, key)) for style in METHOD_STYLES.values())
        shared = {look for look, count in looks.items() if count > 1}
        alike = [name for name, style in METHOD_STYLES.items() if (style.color, getattr(style, key)) in shared]
        assert not alike, f"{alike} share colour and {key}; give each another look, the fifth argument of `Method`"


@pytest.mark.parametrize(
    ("method", "label"),
    [
        ("ce", "CE"),
        ("ce+ts", "CE (TS)"),
        ("flgamma-sece", "FLγ-SECE"),
        ("flgamma-sece+ts", "FLγ-SECE (TS)"),
        ("somebody's", "somebody's"),
    ],
)
def test_method_name_is_that_of_the_paper_or_the_name(method: str, label: str) -> None:
    assert method_name(method) == label


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("digits", "digits"),
        ("two\nlines", "two lines"),
        ("half \udc80 a pair", "half ? a pair"),
        ("a" * 30 + "b" * 30, "a" * 27 + "…" + "b" * 12),
    ],
)
def test_plain_text_of_a_strange_name_can_be_drawn(name: str, text: str) -> None:
    assert plain_text(name) == text


def test_fold_text_breaks_at_spaces_and_only_then_words() -> None:
    title = "my_new_histology_dataset_v2, mynet:net, mean ± std over 2 seeds"
    assert fold_text(title, 9.0) == title
    assert fold_text(title, 2.2) == "my_new_histology_dataset_v2,\nmynet:net, mean ± std over 2 seeds"
    assert fold_text("abcdefgh", 0.01) == "abcd\nefgh"
    assert fold_text("", 1.0) == ""


def test_styles_of_methods_of_one_colour_differ_while_a_colour_is_free() -> None:
    few = [("ce", ""), ("dca+ts", ""), ("flgamma-sece", ""), ("mine", "")]
    found = styles_of(few)
    assert len({style.color for style in found.values()}) == 4
    # The one that stands first keeps its look whatever the order is, and the other its marker.
    assert found["flgamma-sece", ""] == METHOD_STYLES["flgamma-sece"]
    assert found["dca+ts", ""].marker == METHOD_STYLES["dca"].marker
    eight = [(name, "") for name in ("focal", "flsd", "crl", "dca", "flgamma", "mine", "yours", "theirs")]
    assert len({style.color for style in styles_of(eight).values()}) == 8
    # Where none is free two share one, and differ in marker and line.
    paper = [
        (name, "") for name in ("ce", "focal", "flsd", "ls-0.05", "mmce", "ce-dece", "ce-sece", "flgamma-dece", "flgamma-sece")
    ]
    assert styles_of(paper) == {key: METHOD_STYLES[key[0]] for key in paper}


def test_styles_of_variants_are_told_apart_by_their_markers_alone() -> None:
    # For print in grey and for readers who do not see all colours.
    wanted = [("ce", ""), ("ce+ts", ""), *(("ce", f"setting {number}") for number in range(8)), ("focal", "")]
    variants = [style for key, style in styles_of(wanted).items() if key[0] != "focal" and key != ("ce", "")]
    assert len({style.marker for style in variants}) == len(variants)
    assert not any(style.filled for style in variants)
    assert {style.color for style in variants} == {METHOD_STYLES["ce"].color}


def test_styles_of_unknown_names_are_free_ones_and_stable() -> None:
    names = [("mine", ""), ("yours", ""), ("theirs", ""), *((name, "") for name in METHODS)]
    found = styles_of(names)
    assert list(found) == names
    assert len(set(found.values())) == len(names)
