"""`phalanx why`: why a job does not run, or how it ended."""

from typing import TYPE_CHECKING

import typer

from phalanx.cli import formatting
from phalanx.cli.completion import Job
from phalanx.cli.connection import with_client
from phalanx.cli.output import Json, print_json

if TYPE_CHECKING:
    from phalanx.client import Client


@with_client
def why(client: "Client", *, called: Job, as_json: Json = False) -> None:
    """Say why a job waits, is being stopped, or ended."""
    found = client.why(client.find(called))
    if as_json:
        print_json(found)
        return
    typer.echo(f"{found.job}: {found.message}")
    if found.starts_at is not None:
        typer.echo(f"its start is kept free from about {formatting.clock(found.starts_at)} on")
    if found.remedy is not None:
        typer.echo(f"what helps: {found.remedy}")
    for alternative in found.alternatives:
        typer.echo(f"or: {alternative.message}")
