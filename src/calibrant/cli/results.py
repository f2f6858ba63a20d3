"""``calibrant results``: keep finished runs as small records, and make a page of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

results_app = typer.Typer(
    help="Keep results of finished runs as small records, and make a page of them.", rich_markup_mode=None
)


@results_app.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    """Keep results of finished runs as small records, and make a page of them."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@results_app.command("add", short_help="Keep what was measured of finished runs.")
def add_results(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, or folders of them.")],
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the records go.")] = Path("results"),
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="What a reader must know of these runs.")] = None,
) -> None:
    """Keep what was measured of finished runs, with command, machine, versions, learning curves and bins, as JSON."""
    from calibrant.grid.collect import find_runs, load_run_entry
    from calibrant.grid.records import save_results

    found = {path: find_runs(path) for path in runs}
    for path, there in found.items():
        if not there.finished:
            got = f"{len(there.unfinished)} not finished" if there.unfinished else "none" if path.exists() else "nothing there"
            got = "a file" if path.is_file() else got
            raise ValueError(f"{path}: must hold finished runs, got {got}. Name a folder that was `--out` of train or compare.")
    folders = dict.fromkeys(folder for there in found.values() for folder in there.finished)
    for file in save_results([load_run_entry(folder) for folder in folders], to, note=note):
        print(file)


@results_app.command("render", short_help="Make one page of all records.")
def render_page(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of records.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the page goes (Markdown).")],
    figures: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Draw figures too, as PNG into this folder.")] = None,
) -> None:
    """Make one page of all records: the paper's tables beside its numbers, figures, and the runs behind them."""
    from calibrant.paper.results import write_results_page

    for file in write_results_page(folder, out=out, figures=figures):
        print(file)
