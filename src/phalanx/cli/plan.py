"""`phalanx plan`: what would happen, to a job on the cluster or in a scenario from a file."""

from typing import Annotated

import typer

from phalanx.cli.connection import ServerAddress, connected, with_where
from phalanx.cli.exits import Status, end
from phalanx.cli.files import IgnoreImage, IgnoreUnsupported
from phalanx.cli.output import Json

Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="SCENARIO", help="Files, each with a cluster and its work."),
]
JobFile = Annotated[
    str | None,
    typer.Option("--file", "-f", metavar="FILE", help="A job, to be tried on the cluster."),
]
Check = Annotated[
    bool,
    typer.Option("--check", help="Compare with what each file expects; status 1 if any fails."),
]


@with_where
def plan(  # noqa: PLR0913
    where: ServerAddress,
    *,
    files: Files = None,
    file: JobFile = None,
    check: Check = False,
    ignore_image: IgnoreImage = False,
    ignore_unsupported: IgnoreUnsupported = False,
    as_json: Json = False,
) -> None:
    """Say what would happen, and let nothing happen.

    `phalanx plan -f job.yaml` asks the server what would become of a job. `phalanx plan FILE…` asks
    the planner what it would do in a scenario, without a server.
    """
    if files and file is None:
        from phalanx.cli.scenarios import answer, check_all  # noqa: PLC0415

        if check:
            check_all(files)
        else:
            answer(files, as_json=as_json)
    elif file is not None and not files and not check:
        from phalanx.cli.forecast import foresee  # noqa: PLC0415

        with connected(where) as client:
            foresee(
                client,
                file,
                ignore_image=ignore_image,
                ignore_unsupported=ignore_unsupported,
                as_json=as_json,
            )
    else:
        end(Status.USAGE, "give a job with -f, or scenarios; --check is for scenarios")
