"""`phalanx config`: what is in force, and where each value came from."""

import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from phalanx.cli.settings import with_settings
from phalanx.server import stores
from phalanx.server.config import Config
from phalanx.server.options import OPTIONS, Option

Json = Annotated[bool, typer.Option("--json", help="For programs.")]


@with_settings()
def config(config: Config, *, as_json: Json = False) -> None:
    """Print every setting, its value, and where that came from."""
    rows = [(each, _shown(config, each), config.origins[each.name]) for each in OPTIONS]
    if as_json:
        document = {each.name: {"value": value, "from": origin} for each, value, origin in rows}
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("setting", "value", "from"):
        table.add_column(column, overflow="fold")
    for each, value, origin in rows:
        table.add_row(each.name, value, "" if origin == "default" else origin)
    # A pipe has no width of its own; nothing must be folded there.
    width = None if sys.stdout.isatty() else 200
    Console(width=width, highlight=False, markup=False).print(table)


def _shown(config: Config, option: Option) -> str:
    """A store is shown where it is, and without its password."""
    return stores.shown(stores.place_of(config)) if option.name == "store" else config.shown(option)
