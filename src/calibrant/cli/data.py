"""``calibrant data``: what sets there are, and downloading them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

data_app = typer.Typer(help="List data sets and download them.", rich_markup_mode=None)
Root = Annotated[
    Path | None, typer.Option("--data-root", "--root", metavar="FOLDER", help="Where sets lie (~/.cache/calibrant/data).")
]


@data_app.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    """List data sets and download them."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@data_app.command("list", short_help="Show every data set and whether it is there.")
def list_sets(root: Root = None) -> None:
    """Show every data set that can be named, and whether it is there."""
    from calibrant.data import DATASETS, DEFAULT_ROOT

    for name, source in DATASETS.items():
        fetch = f"to fetch, {_megabytes(source.bytes)}"
        state = "embedded" if source.embedded else "there" if source.is_there(root) else fetch
        print(f"{name:14} {state:18} {source.about}")
    print(f"in {root or DEFAULT_ROOT}; get one with `calibrant data fetch NAME`.")
    print("A folder of class folders, or an .npz of images, is named by its path: `calibrant train --data PATH`.")


@data_app.command("fetch", short_help="Download data sets and check them.")
def fetch_sets(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Data sets: cifar10, mnist …")], root: Root = None
) -> None:
    """Download data sets, compare them with their checksums, and go on where an earlier download stopped."""
    from calibrant.cli.terminal import progress_bar
    from calibrant.data import DATASETS

    for source in [DATASETS[name] for name in names]:
        if not source.files:
            print(f"{source.name}: there is nothing to fetch")
            continue
        try:
            with progress_bar(f"{source.name}, {_megabytes(source.bytes)}", source.bytes) as advance:
                files = source.fetch(root, report=advance)
        except KeyboardInterrupt:
            print("calibrant: interrupted. Run the same command again to go on where it stopped.", file=sys.stderr)
            raise typer.Exit(130) from None
        print(f"{source.name}: {', '.join(str(file) for file in files)}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"
