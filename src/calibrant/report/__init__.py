"""Figures and pages, drawn from records. Nothing here trains or fits."""

from importlib import import_module

_HOMES = {
    "Examined": "page",
    "render_page": "page",
    "draw_all": "figures",
    "draw_reliability_grid": "reliability",
    "prepare_reliability": "reliability",
    "group_rows": "rows",
    "save_figure": "save",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    """Load what is asked for: a page needs no figures, and figures need no page."""
    if name not in _HOMES:
        raise AttributeError(f"module 'calibrant.report' has no attribute {name!r}")
    return getattr(import_module(f"calibrant.report.{_HOMES[name]}"), name)
