"""`phalanx submit`: a job from a file or from the command line."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import urlsplit

import typer

from phalanx.cli import completion, formatting
from phalanx.cli.connection import with_client
from phalanx.cli.exits import Status, end
from phalanx.cli.files import IgnoreImage, IgnoreUnsupported, about, contents
from phalanx.cli.follow import follow_output, print_end, status_of, wait_for, wait_for_start
from phalanx.cli.options import one_of, whole_number
from phalanx.cli.output import Json, note, print_json, warn
from phalanx.cli.visible_text import say
from phalanx.core.spec.job import CheckpointPolicy, PartialCompletion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from phalanx.client import Client
    from phalanx.wire.crons import CronView
    from phalanx.wire.jobs import BatchItem, JobDetail, JobView, SubmitReply

_GANG, _JOB = "Gang", "Job"
_RESOURCES = ("gpu", "cpu", "memory")
#: The options of one field each, by the name of the field.
_OPTIONS = (
    *("gang", *_RESOURCES, "env", "workdir", "name", "namespace", "queue", "priority"),
    *("time_limit", "checkpoint", "on_partial_completion", "max_retries"),
)

Command = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="COMMAND", help="Command that each task runs, after --.", show_default=False
    ),
]
File = Annotated[
    str | None,
    typer.Option(
        "--file", "-f", metavar="FILE", help="Job file, YAML or JSON; - reads standard input."
    ),
]
Gang = Annotated[
    int | None,
    typer.Option(
        "--gang",
        metavar="NUMBER",
        parser=whole_number(1),
        help="Number of tasks, which start together. [default: 1]",
        rich_help_panel=_GANG,
    ),
]
Gpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="AMOUNT",
        help="GPUs per task; a fraction shares one GPU.",
        rich_help_panel=_GANG,
    ),
]
Cpu = Annotated[
    str | None,
    typer.Option("--cpu", metavar="AMOUNT", help="CPUs per task.", rich_help_panel=_GANG),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory", metavar="AMOUNT", help="Memory per task, like 32Gi.", rich_help_panel=_GANG
    ),
]
Environment = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="Environment variable; repeat for more.",
        rich_help_panel=_GANG,
    ),
]
Workdir = Annotated[
    str | None,
    typer.Option(
        "--workdir",
        metavar="DIR",
        help="Working directory on the worker. [default: the current directory, if the server runs"
        " on this machine]",
        rich_help_panel=_GANG,
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Job name.", rich_help_panel=_JOB),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", metavar="NAME", help="Namespace.", rich_help_panel=_JOB),
]
Queue = Annotated[
    str | None,
    typer.Option(
        "--queue",
        metavar="NAME",
        help="Queue to submit to.",
        rich_help_panel=_JOB,
        autocompletion=completion.queues,
    ),
]
Priority = Annotated[
    int | None,
    typer.Option(
        "--priority",
        metavar="NUMBER",
        parser=whole_number(),
        help="Priority; higher numbers start first.",
        rich_help_panel=_JOB,
    ),
]
TimeLimit = Annotated[
    str | None,
    typer.Option(
        "--time-limit",
        metavar="TIME",
        help="Longest duration of one attempt, like 90m or 6h.",
        rich_help_panel=_JOB,
    ),
]
Checkpoint = Annotated[
    CheckpointPolicy | None,
    typer.Option(
        "--checkpoint",
        metavar="POLICY",
        parser=one_of(CheckpointPolicy),
        help="What tasks save when the job is stopped: none, each (one checkpoint per task) or all"
        " (a set that counts only if every task saved).",
        rich_help_panel=_JOB,
    ),
]
OnPartialCompletion = Annotated[
    PartialCompletion | None,
    typer.Option(
        "--on-partial-completion",
        metavar="ACTION",
        parser=one_of(PartialCompletion),
        help="What happens if the gang has to start again when some of its tasks are done: restart"
        " (all tasks start again) or fail. [default: restart with --checkpoint each or all]",
        rich_help_panel=_JOB,
    ),
]
Retries = Annotated[
    int | None,
    typer.Option(
        "--max-retries",
        metavar="NUMBER",
        parser=whole_number(),
        help="Number of failures after which the job fails.",
        rich_help_panel=_JOB,
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
        help="Print the job's output, and wait until it ends. With --json, the output goes to"
        " standard error.",
    ),
]


@with_client
def submit(  # noqa: PLR0913
    client: "Client",
    *,
    command: Command = None,
    file: File = None,
    gang: Gang = None,
    gpu: Gpu = None,
    cpu: Cpu = None,
    memory: Memory = None,
    env: Environment = None,
    workdir: Workdir = None,
    name: Name = None,
    namespace: Namespace = None,
    queue: Queue = None,
    priority: Priority = None,
    time_limit: TimeLimit = None,
    checkpoint: Checkpoint = None,
    on_partial_completion: OnPartialCompletion = None,
    max_retries: Retries = None,
    key: Key = None,
    ignore_image: IgnoreImage = False,
    ignore_unsupported: IgnoreUnsupported = False,
    wait: Wait = False,
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """Submit a job from a file or a command, and print its id.

    phalanx submit --gang 4 --gpu 1 -- python train.py
    """
    fields: dict[str, Any] = {
        "gang": gang,
        "gpu": gpu,
        "cpu": cpu,
        "memory": memory,
        "env": _variables(env),
        "workdir": workdir,
        "name": name,
        "namespace": namespace,
        "queue": queue,
        "priority": priority,
        "time_limit": time_limit,
        "checkpoint": checkpoint,
        "on_partial_completion": on_partial_completion,
        "max_retries": max_retries,
    }
    given = {field: value for field, value in fields.items() if value is not None}
    if file is not None:
        _refuse_mixture(command, given)
        ignored = {"ignore_image": ignore_image, "ignore_unsupported": ignore_unsupported}
        items = _submit_file(client, file, key, **ignored)
    elif ignore_image or ignore_unsupported:
        end(Status.USAGE, "--ignore-image and --ignore-unsupported need a file; pass it with -f")
    elif command:
        items = (_submit_command(client, command, given, key),)
    else:
        end(Status.USAGE, "nothing to submit; pass a file with -f, or a command after --")
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


def _refuse_mixture(command: list[str] | None, given: dict[str, Any]) -> None:
    """Options never override a file: the job would not be the one that was reviewed."""
    if command:
        end(Status.USAGE, "both a file and a command were given; give one of them")
    for field in given:
        flag = "--" + field.replace("_", "-")
        end(Status.USAGE, f"{flag} cannot be combined with a file; set {field} in the file")


def _variables(given: list[str] | None) -> dict[str, str] | None:
    if not given:
        return None
    pairs = [variable.partition("=") for variable in given]
    for name, equals, _ in pairs:
        if not equals:
            end(Status.USAGE, f"--env {name} has no value; write NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _submit_command(
    client: "Client", command: list[str], given: dict[str, Any], key: str | None
) -> "BatchItem":
    from phalanx.cli.errors import problems_of  # noqa: PLC0415
    from phalanx.client.errors import InvalidError  # noqa: PLC0415
    from phalanx.wire.jobs import BatchItem  # noqa: PLC0415

    try:
        return BatchItem(job=client.submit(_document(client, command, given), key=key))
    except InvalidError as error:
        end(Status.USAGE, *map(_with_option, problems_of(error.info)))


def _with_option(problem: str) -> str:
    """A problem of the job, which begins with a path, with the option that was given instead."""
    path, _, message = problem.partition(" ")
    name = path.removeprefix("roles.worker.").removeprefix("resources.").partition(".")[0]
    name = {"replicas": "gang"}.get(name, name)
    return f"--{name.replace('_', '-')} {message}" if name in _OPTIONS else problem


def _document(client: "Client", command: list[str], given: dict[str, Any]) -> dict[str, Any]:
    from phalanx.client.submission import one_role  # noqa: PLC0415

    resources: dict[str, Any] = {name: given.pop(name) for name in _RESOURCES if name in given}
    memory = str(resources.get("memory", ""))
    if memory.isdecimal() and int(memory) < 2**20:
        end(Status.USAGE, f"--memory {memory} is {memory} bytes; write a unit, like {memory}Gi")
    if all(_is_local(server) for server in client.servers):
        given.setdefault("workdir", str(Path.cwd()))
    return one_role(command, resources=resources, **given)


def _is_local(server: str) -> bool:
    return urlsplit(server).hostname in ("127.0.0.1", "localhost", "::1")


def _submit_file(
    client: "Client", file: str, key: str | None, *, ignore_image: bool, ignore_unsupported: bool
) -> "tuple[BatchItem, ...]":
    """Submit every job of a file, or none. Ends the command if one is refused."""
    from phalanx.cli.errors import problems_of  # noqa: PLC0415
    from phalanx.client.errors import InvalidError  # noqa: PLC0415

    try:
        reply = client.submit_file(
            contents(file),
            key=key,
            ignore_image=ignore_image,
            ignore_unsupported=ignore_unsupported,
        )
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
            if follow:
                wait_for_start(client, job.id)
                follow_output(client, job.id, on_stderr=not is_stdout_free)
            ended.append(wait_for(client, job.id))
        except KeyboardInterrupt:
            say(f"the job keeps running; stop it with `phalanx cancel {job.name}`", err=True)
            raise
        print_end(ended[-1], "job" if len(jobs) == 1 else f"job {job.id}")
    return ended
