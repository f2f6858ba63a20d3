"""Many runs: planning and running them, reading them back, and tables, figures and a page of what they predict."""

from calibrant.core.records import Entry
from calibrant.grid.collect import load_entries
from calibrant.grid.compare import Comparison
from calibrant.grid.export import to_csv, to_json, to_latex, to_markdown, write_table
from calibrant.grid.tables import compare_table, load_paper

__all__ = [
    "Comparison",
    "Entry",
    "compare_table",
    "load_entries",
    "load_paper",
    "to_csv",
    "to_json",
    "to_latex",
    "to_markdown",
    "write_table",
]
