"""`phalanx plan`: what the planner would do with a job on the live cluster, or in a scenario."""

from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.connection import ServerAddress, connected, with_address
from phalanx.cli.exits import Status, end
from phalanx.cli.files import IgnoreImage, IgnoreUnsupported, about, contents
from phalanx.cli.output import Json, print_json, warn
from phalanx.cli.visible_text import say

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.plan import PlanView

Scenarios = Annotated[
    list[str] | None,
    typer.Argument(metavar="SCENARIO", help="Scenario files, each with nodes, queues and gangs."),
]
JobFile = Annotated[
    str | None,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="Job file to plan on the live cluster; - reads standard input.",
    ),
]
Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Compare each scenario with its expectations; exit with status 1 if one differs.",
    ),
]


@with_address
def plan(  # noqa: PLR0913
    address: ServerAddress,
    *,
    files: Scenarios = None,
    file: JobFile = None,
    check: Check = False,
    ignore_image: IgnoreImage = False,
    ignore_unsupported: IgnoreUnsupported = False,
    as_json: Json = False,
) -> None:
    """Show what the planner would do, without changing anything.

    With -f, the server plans a job on the live cluster: where and when it would start, and which
    jobs it would evict. With scenario files, the planner runs without a server.
    """
    if files and file is None:
        from phalanx.cli.scenarios import check_scenarios, print_scenarios  # noqa: PLC0415

        if check:
            check_scenarios(files)
        else:
            print_scenarios(files, as_json=as_json)
    elif file is not None and not files and not check:
        with connected(address) as client:
            view = _plan_job(client, file, ignore_image, ignore_unsupported)
        if as_json:
            print_json(view)
        else:
            _print_plan(view)
    else:
        end(Status.USAGE, "give either a job with -f, or scenarios; --check needs scenarios")


def _plan_job(
    client: "Client", file: str, ignore_image: bool, ignore_unsupported: bool
) -> "PlanView":
    """The server's plan for the job. Ends the command if the file is refused."""
    from phalanx.cli.errors import problems_of  # noqa: PLC0415
    from phalanx.client.errors import InvalidError  # noqa: PLC0415

    text = contents(file)
    try:
        return client.plan(text, ignore_image=ignore_image, ignore_unsupported=ignore_unsupported)
    except InvalidError as error:
        end(Status.USAGE, *(about(file, problem) for problem in problems_of(error.info)))


def _print_plan(view: "PlanView") -> None:
    for warning in view.warnings:
        warn(str(warning.get("message", warning)))
    say(view.message)
    for alternative in view.alternatives:
        say(f"alternative: {alternative.message}")
