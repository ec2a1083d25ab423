"""`phalanx config`: the settings in force, and the source of each value."""

import json
import sys

import typer
from rich.console import Console
from rich.table import Table

from phalanx.cli.output import Json
from phalanx.cli.settings import with_settings
from phalanx.server import stores
from phalanx.server.config import Config
from phalanx.server.options import OPTIONS, Option

_PIPE_WIDTH = 200


@with_settings()
def config(config: Config, *, as_json: Json = False) -> None:
    """Print every server setting, its value and its source."""
    rows = [(each, _value(config, each), config.origins[each.name]) for each in OPTIONS]
    if as_json:
        document = {each.name: {"value": value, "from": source} for each, value, source in rows}
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False, header_style="bold dim")
    for column in ("SETTING", "VALUE", "SOURCE"):
        table.add_column(column, overflow="fold")
    for each, value, source in rows:
        table.add_row(each.name, value, source)
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    Console(width=width, highlight=False, markup=False).print(table)


def _value(config: Config, option: Option) -> str:
    """The value as text; a store without its password."""
    return stores.shown(stores.place_of(config)) if option.name == "store" else config.shown(option)
