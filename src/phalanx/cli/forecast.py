"""What would become of a job, asked of a server. Nothing is submitted."""

from typing import TYPE_CHECKING

import typer

from phalanx.cli.errors import wrongs_of
from phalanx.cli.exits import Status, end
from phalanx.cli.files import about, contents
from phalanx.cli.output import print_json, warn
from phalanx.client.errors import InvalidError

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.plan import PlanView


def foresee(
    client: "Client", file: str, *, ignore_image: bool, ignore_unsupported: bool, as_json: bool
) -> None:
    """Say it in words: where and when it would start, who would give way, what else was tried."""
    text = contents(file)
    try:
        view = client.plan(text, ignore_image=ignore_image, ignore_unsupported=ignore_unsupported)
    except InvalidError as error:
        end(Status.USAGE, *(about(file, wrong) for wrong in wrongs_of(error.info)))
    if as_json:
        print_json(view)
    else:
        _tell(view)


def _tell(view: "PlanView") -> None:
    for warning in view.warnings:
        warn(str(warning.get("message", warning)))
    typer.echo(view.message)
    for alternative in view.alternatives:
        typer.echo(f"or: {alternative.message}")
