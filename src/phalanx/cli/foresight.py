"""What would become of a job, asked of a server. Nothing is submitted."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from phalanx.cli.exits import Status, end
from phalanx.cli.output import print_json, warn

if TYPE_CHECKING:
    from phalanx.client import Client


def foresee(client: "Client", file: str, *, as_json: bool) -> None:
    """Say it in words: where and when it would start, who would give way, what else was tried."""
    try:
        text = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        end(Status.USAGE, f"{file}: {error.strerror}")
    view = client.plan(text)
    if as_json:
        print_json(view)
        return
    for warning in view.warnings:
        warn(str(warning.get("message", warning)))
    typer.echo(view.message)
    for alternative in view.alternatives:
        typer.echo(f"or: {alternative.message}")
