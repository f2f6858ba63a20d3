from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

from calibrant.report.save import clear_figures, figure_stem, print_style, render_figure, save_figure, svg_element, tell


def plain_figure() -> Figure:
    with print_style():
        figure = Figure(figsize=(2, 1.5))
        figure.subplots().set(title="FLγ over 3 seeds", xlabel="confidence")
    return figure


def test_save_figure_writes_png_at_300_dpi_and_pdf(tmp_path: Path) -> None:
    png, pdf = save_figure(plain_figure(), tmp_path / "ls-0.05")
    assert (png.name, pdf.name) == ("ls-0.05.png", "ls-0.05.pdf")
    assert plt.imread(png).shape[:2] == (450, 600)
    assert pdf.read_bytes().startswith(b"%PDF")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["ls-0.05.pdf", "ls-0.05.png"]


def test_save_figure_pdf_embeds_truetype_fonts() -> None:
    content = render_figure(plain_figure(), kind="pdf")
    assert b"/FontFile2" in content
    assert b"/Type3" not in content


def test_svg_element_tells_whose_row_a_part_shows_and_has_no_styles() -> None:
    figure = plain_figure()
    (line,) = figure.axes[0].plot([0, 1], [0, 1], color="#d55e00")
    tell(line, 'a "quoted" <row>', "last 1 & more")
    root = ET.fromstring(svg_element(figure, name="one", label="A line"))
    parts = list(root.iter())
    (row,) = (part for part in parts if part.get("data-run"))
    assert row.get("data-run") == 'a "quoted" <row>'
    assert [part.text for part in row if part.tag.endswith("title")] == ['a "quoted" <row>: last 1 & more']
    assert (root.get("role"), root.get("aria-label")) == ("img", "A line")
    assert any(part.get("stroke") == "#d55e00" for part in parts)
    assert any(part.text == "FLγ over 3 seeds" and part.get("font-size") == "8px" for part in parts)
    assert not any(part.get("style") or part.tag.endswith(("style", "metadata")) for part in parts)


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_render_figure_twice_gives_the_same_bytes_without_a_date(kind: str) -> None:
    first, second = (render_figure(plain_figure(), kind=kind) for _ in range(2))
    assert first == second
    assert b"CreationDate" not in first
    assert matplotlib.__version__.encode() not in first


def test_render_figure_of_letters_that_the_font_lacks_is_silent() -> None:
    figure = plain_figure()
    figure.axes[0].set_title("データ \U0001f600")
    assert all(render_figure(figure, kind=kind) for kind in ("png", "pdf"))


@pytest.mark.parametrize(
    ("data", "model", "stem"),
    [
        ("mixture (quick)", "mlp", "curves-mixture-quick-mlp"),
        ("my data/v2", "own:net", "curves-my_data_v2-own_net"),
        ("tiny-imagenet", None, "curves-tiny_imagenet"),
        ("(a) b", None, "curves-a-b"),
        ("()", "?", "curves-_-_"),
    ],
)
def test_figure_stem_is_a_plain_file_name(data: str, model: str | None, stem: str) -> None:
    assert figure_stem("curves", data, model) == stem


def test_clear_figures_removes_its_own_alone(tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    own = [
        *save_figure(plain_figure(), folder_of(folder) / "curves-a-b"),
        *save_figure(plain_figure(), folder / "gamma-epochs-c"),
    ]
    save_figure(plain_figure(), folder / "mine")
    # The same names, not by calibrant; and a file of it under another ending.
    plain_figure().savefig(folder / "curves-theirs.png")
    plain_figure().savefig(folder / "curves-theirs.pdf")
    (folder / "curves-notes.txt").write_bytes(own[1].read_bytes())
    (folder / "curves-folder.png").mkdir()
    clear_figures(folder, ["curves", "gamma-epochs"])
    left = {"mine.png", "mine.pdf", "curves-theirs.png", "curves-theirs.pdf", "curves-notes.txt", "curves-folder.png"}
    assert {file.name for file in folder.iterdir()} == left


def folder_of(path: Path) -> Path:
    path.mkdir()
    return path
