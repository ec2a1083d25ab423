"""`phalanx why`: why a job does not run, or how it ended."""

from typing import TYPE_CHECKING

import typer

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
