"""Figures and pages, drawn from records. Nothing here trains or fits."""

from calibrant.report.figures import draw_all, draw_reliability_grid, prepare_reliability
from calibrant.report.page import Examined, render_page
from calibrant.report.rows import group_rows
from calibrant.report.save import save_figure

__all__ = [
    "Examined",
    "draw_all",
    "draw_reliability_grid",
    "group_rows",
    "prepare_reliability",
    "render_page",
    "save_figure",
]
