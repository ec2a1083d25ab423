"""`phalanx submit`: a job from a file or from the command line."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from phalanx.cli import formatting
from phalanx.cli.connection import with_client
from phalanx.cli.exits import Status, end
from phalanx.cli.files import IgnoreImage, IgnoreUnsupported, about, contents
from phalanx.cli.follow import (
    follow_array,
    follow_output,
    print_end,
    status_of,
    wait_for,
    wait_for_start,
)
from phalanx.cli.help_pages import words_after_dashes
from phalanx.cli.job_options import (
    overrides,
    problems_named_by_option,
    refuse_file_options,
    with_job_options,
)
from phalanx.cli.output import Json, note, print_json, warn
from phalanx.cli.visible_text import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from phalanx.client import Client
    from phalanx.wire.crons import CronView
    from phalanx.wire.jobs import BatchItem, JobDetail, JobView, SubmitReply

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SCRIPT",
        help="Script with #PHALANX lines, and its arguments; or, after --, the command that each"
        " task runs.",
        show_default=False,
    ),
]
File = Annotated[
    str | None,
    typer.Option(
        "--file", "-f", metavar="FILE", help="Job file, YAML or JSON; - reads standard input."
    ),
]


def _key(given: str) -> str:
    """The reader of an idempotency key, which is sent in a header."""
    if not given.isascii() or not given.isprintable():
        raise typer.BadParameter(f"is {given!r}; write printable ASCII characters")
    return given


Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        parser=_key,
        help="Idempotency key: submitting again with the same key returns the same job.",
    ),
]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait",
        "-w",
        help="Wait until the job ends; exit with status 1 unless it is done. With --json, print the"
        " job as it ended.",
    ),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow",
        help="Print the job's output, and wait until it ends. Why an attempt stopped goes to"
        " standard error; with --json, the output too.",
    ),
]


@with_client
@with_job_options
def submit(  # noqa: PLR0913
    client: "Client",
    context: typer.Context,
    *,
    words: Words = None,
    file: File = None,
    given: dict[str, Any],
    key: Key = None,
    ignore_image: IgnoreImage = False,
    ignore_unsupported: IgnoreUnsupported = False,
    wait: Wait = False,
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """Submit a job from a command, a script or a file, and print its id.

    Options beside a script or a file replace what is in it. The options of a script are in lines
    like `#PHALANX --gang 4 --gpu 1` at its top; words after its name are its arguments.

    phalanx submit --gang 4 --gpu 1 -- python train.py
    phalanx submit train.sh
    phalanx submit -f job.yaml --priority 10 -- python other.py
    """
    if file is not None and (words or []) != words_after_dashes(context):
        end(Status.USAGE, "both a file and a script were given; give one of them")
    if file is not None:
        ignored = {"ignore_image": ignore_image, "ignore_unsupported": ignore_unsupported}
        changed = overrides(given) | ({"command": words} if words else {})
        items = _submit_file(client, file, key, changed, **ignored)
    elif words:
        refuse_file_options(ignore_image=ignore_image, ignore_unsupported=ignore_unsupported)
        items = (_submit_one(client, _job_of_words(words, context, given), key),)
    else:
        end(Status.USAGE, "nothing to submit; pass a file with -f, a script, or a command after --")
    _report(client, items, is_awaited=wait or follow, follow=follow, as_json=as_json)


def _report(
    client: "Client", items: "Sequence[BatchItem]", *, is_awaited: bool, follow: bool, as_json: bool
) -> None:
    """Print what was submitted, or wait until it has ended."""
    jobs = [item.job for item in items if item.job is not None]
    crons = [item.cron for item in items if item.cron is not None]
    _print_warnings([*jobs, *crons])
    if is_awaited:
        _end_with_jobs(client, jobs, crons, follow=follow, as_json=as_json)
    _print_submitted([*jobs, *crons], as_json=as_json)


def _end_with_jobs(
    client: "Client",
    jobs: "list[SubmitReply]",
    crons: "list[CronView]",
    *,
    follow: bool,
    as_json: bool,
) -> NoReturn:
    """Wait until every job ends; the exit status is 0 only if all of them are done."""
    if not as_json:
        _print_names([*jobs, *crons])
    ended = _wait_for_all(client, jobs, follow=follow, is_stdout_free=not as_json)
    if as_json:
        _print_as_json([*ended, *crons])
    raise typer.Exit(max(map(status_of, ended), default=Status.OK))


def _job_of_words(
    words: list[str], context: typer.Context, given: dict[str, Any]
) -> dict[str, Any]:
    """The job of a command after `--`, or of a script and its arguments."""
    if words == words_after_dashes(context):
        return {"command": words, **overrides(given)}
    from phalanx.cli.batch_script import read_script  # noqa: PLC0415

    script = read_script(words[0], words[1:], context)
    env = script.fields.get("env", {}) | given.get("env", {})
    fields = script.fields | given | ({"env": env} if env else {})
    return {"command": script.command, **overrides(fields)}


def _submit_one(client: "Client", job: dict[str, Any], key: str | None) -> "BatchItem":
    from phalanx.wire.jobs import BatchItem  # noqa: PLC0415

    with problems_named_by_option():
        try:
            return BatchItem(job=client.submit(job, key=key))
        except ValueError as error:  # the current directory was removed
            end(Status.USAGE, f"{error}: --workdir DIR")


def _submit_file(
    client: "Client", file: str, key: str | None, changed: dict[str, Any], **ignored: bool
) -> "tuple[BatchItem, ...]":
    """Submit every job of a file, or none. Ends the command if one is refused."""
    from phalanx.cli.errors import problems_of  # noqa: PLC0415
    from phalanx.client.errors import InvalidError  # noqa: PLC0415

    try:
        reply = client.submit_file(contents(file), key=key, overrides=changed, **ignored)
    except InvalidError as error:
        end(Status.USAGE, *(about(file, problem) for problem in problems_of(error.info)))
    for warning in reply.warnings:
        warn(str(warning.get("message", warning)))
    for queue in reply.queues:
        note(f"queue {queue} set")
    return reply.results


def _print_submitted(submitted: "Sequence[SubmitReply | CronView]", *, as_json: bool) -> None:
    if as_json:
        _print_as_json(submitted)
    else:
        _print_names(submitted)
    if len(submitted) == 1:
        _note_next_step(submitted[0])


def _print_names(submitted: "Sequence[SubmitReply | CronView]") -> None:
    from phalanx.wire.crons import CronView  # noqa: PLC0415

    for each in submitted:
        say(f"{each.namespace}/{each.name}" if isinstance(each, CronView) else each.id)


def _print_as_json(values: "Sequence[JobView | CronView]") -> None:
    print_json(values[0] if len(values) == 1 else values)


def _print_warnings(submitted: "Sequence[SubmitReply | CronView]") -> None:
    """Print each warning once, with the number of jobs that have it."""
    messages = Counter(
        str(warning.get("message", warning)) for each in submitted for warning in each.warnings
    )
    for message, count in messages.items():
        warn(message if count == 1 else f"{message} ({count} jobs)")


def _note_next_step(submitted: "SubmitReply | CronView") -> None:
    from phalanx.wire.crons import CronView  # noqa: PLC0415

    name = submitted.name
    if isinstance(submitted, CronView):
        at = formatting.utc_minute(submitted.next_at) if submitted.next_at else "no set time"
        note(f"next run at {at}; list its runs with `phalanx cron show {name}`")
    elif submitted.elements is not None:
        elements = formatting.plural(submitted.elements.total, "element")
        note(f"submitted {elements}; list them with `phalanx jobs {name}`")
    elif submitted.reason is not None:
        note(f"pending: {submitted.reason['message']}; see `phalanx why {name}`")
    else:
        tasks = formatting.plural(submitted.size, "task")
        note(f"submitted {tasks}; follow the output with `phalanx logs -f {name}`")


def _wait_for_all(
    client: "Client", jobs: "list[SubmitReply]", *, follow: bool, is_stdout_free: bool
) -> "list[JobDetail]":
    """Wait until every job ends. Their output goes to standard output if that is free."""
    ended = []
    for job in jobs:
        try:
            if follow and job.elements is not None:
                follow_array(client, job.id)
            elif follow:
                wait_for_start(client, job.id)
                follow_output(client, job.id, on_stderr=not is_stdout_free)
            ended.append(wait_for(client, job.id))
        except KeyboardInterrupt:
            say(f"the job keeps running; stop it with `phalanx cancel {job.name}`", err=True)
            raise
        print_end(ended[-1], "job" if len(jobs) == 1 else f"job {job.name}")
    return ended
