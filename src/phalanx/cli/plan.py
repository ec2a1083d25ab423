"""`phalanx plan`: what the planner would do with a job on the live cluster, or in a scenario."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.connection import ServerAddress, connected, with_address
from phalanx.cli.exits import Status, end
from phalanx.cli.files import IgnoreImage, IgnoreUnsupported, about, contents
from phalanx.cli.help_pages import words_after_dashes
from phalanx.cli.job_options import (
    overrides,
    problems_named_by_option,
    refuse_file_options,
    with_job_options,
)
from phalanx.cli.output import Json, print_json, warn
from phalanx.cli.visible_text import say

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.plan import PlanView

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SCENARIO",
        help="Scenario files, each with nodes, queues and gangs; or, after --, the command of a job"
        " to plan on the live cluster.",
        show_default=False,
    ),
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


#: The warning that a job never starts: the message of a plan says it too.
_SAID_BY_MESSAGE = "WillNotStart"


@with_address
@with_job_options
def plan(  # noqa: PLR0913
    address: ServerAddress,
    context: typer.Context,
    *,
    words: Words = None,
    file: JobFile = None,
    check: Check = False,
    given: dict[str, Any],
    ignore_image: IgnoreImage = False,
    ignore_unsupported: IgnoreUnsupported = False,
    as_json: Json = False,
) -> None:
    """Show what the planner would do, without changing anything.

    With -f or a command after --, the server plans a job on the live cluster: where and when it
    would start, and which jobs it would evict. Of a cron: when its next run is due, and what would
    happen then. With scenario files, the planner runs without a server.

    phalanx plan --gang 4 --gpu 1 -- python train.py
    """
    command = words_after_dashes(context)
    scenarios = (words or [])[: len(words or []) - len(command)]
    if (file is not None) + bool(command) + bool(scenarios) != 1 or (check and not scenarios):
        end(
            Status.USAGE,
            "give one of: a job with -f, a command after --, or scenarios; --check needs scenarios",
        )
    if file is None:
        refuse_file_options(ignore_image=ignore_image, ignore_unsupported=ignore_unsupported)
    if scenarios and given:
        end(Status.USAGE, f"--{next(iter(given)).replace('_', '-')} is for jobs, not for scenarios")
    if scenarios:
        _plan_scenarios(scenarios, check=check, as_json=as_json)
        return
    with connected(address) as client:
        if file is None:
            with problems_named_by_option():
                view = client.plan({"command": command, **overrides(given)})
        else:
            ignored = {"ignore_image": ignore_image, "ignore_unsupported": ignore_unsupported}
            view = _plan_job(client, file, overrides(given), **ignored)
    if as_json:
        print_json(view)
    else:
        _print_plan(view)


def _plan_scenarios(files: list[str], *, check: bool, as_json: bool) -> None:
    from phalanx.cli.scenarios import check_scenarios, print_scenarios  # noqa: PLC0415

    if check:
        check_scenarios(files)
    else:
        print_scenarios(files, as_json=as_json)


def _plan_job(client: "Client", file: str, changed: dict[str, Any], **ignored: bool) -> "PlanView":
    """The server's plan for the job. Ends the command if the file is refused."""
    from phalanx.cli.errors import problems_of  # noqa: PLC0415
    from phalanx.client.errors import InvalidError  # noqa: PLC0415

    text = contents(file)
    try:
        return client.plan(text, overrides=changed, **ignored)
    except InvalidError as error:
        end(Status.USAGE, *(about(file, problem) for problem in problems_of(error.info)))


def _print_plan(view: "PlanView") -> None:
    for warning in view.warnings:
        if warning.get("type") != _SAID_BY_MESSAGE:
            warn(str(warning.get("message", warning)))
    say(view.message)
    for alternative in view.alternatives:
        say(f"alternative: {alternative.message}")
