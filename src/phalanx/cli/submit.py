"""`phalanx submit`: a job from a file or from the command line."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import urlsplit

import typer

from phalanx.cli import completion, formatting
from phalanx.cli.connection import with_client
from phalanx.cli.exits import Status, end
from phalanx.cli.files import IgnoreImage, IgnoreUnsupported, about, contents
from phalanx.cli.follow import status_of, tell_end, wait_for, wait_for_start
from phalanx.cli.output import Json, note, print_json, print_output, warn
from phalanx.core.spec.job import CheckpointPolicy

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.crons import CronView
    from phalanx.wire.jobs import BatchItem, SubmitReply

_ROLE = "The gang"
_JOB = "The job"
_RESOURCES = ("gpu", "cpu", "memory")

Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="COMMAND", help="What each task runs, after --.", show_default=False),
]
File = Annotated[
    str | None,
    typer.Option("--file", "-f", metavar="FILE", help="YAML or JSON; - is standard input."),
]
Gang = Annotated[
    int | None,
    typer.Option("--gang", metavar="NUMBER", min=1, help="How many tasks.", rich_help_panel=_ROLE),
]
Gpu = Annotated[
    str | None,
    typer.Option("--gpu", metavar="AMOUNT", help="GPUs of each task.", rich_help_panel=_ROLE),
]
Cpu = Annotated[
    str | None,
    typer.Option("--cpu", metavar="AMOUNT", help="CPUs of each task.", rich_help_panel=_ROLE),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory", metavar="AMOUNT", help="Memory of each, like 32Gi.", rich_help_panel=_ROLE
    ),
]
Environment = Annotated[
    list[str] | None,
    typer.Option(
        "--env", metavar="NAME=VALUE", help="A variable; repeat for more.", rich_help_panel=_ROLE
    ),
]
Workdir = Annotated[
    str | None,
    typer.Option(
        "--workdir",
        metavar="DIR",
        help="Where it runs on the worker; here, if the server is on this machine.",
        rich_help_panel=_ROLE,
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="What to call it.", rich_help_panel=_JOB),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", metavar="NAME", help="Whose it is.", rich_help_panel=_JOB),
]
Queue = Annotated[
    str | None,
    typer.Option(
        "--queue",
        metavar="NAME",
        help="Whose share it uses.",
        rich_help_panel=_JOB,
        autocompletion=completion.queues,
    ),
]
Priority = Annotated[
    int | None,
    typer.Option("--priority", metavar="NUMBER", help="Higher starts first.", rich_help_panel=_JOB),
]
TimeLimit = Annotated[
    str | None,
    typer.Option("--time-limit", metavar="TIME", help="Like 90m or 6h.", rich_help_panel=_JOB),
]
Checkpoint = Annotated[
    CheckpointPolicy | None,
    typer.Option(
        "--checkpoint",
        metavar="POLICY",
        help="Whether it saves when it is stopped: none, each or all.",
        rich_help_panel=_JOB,
    ),
]
Retries = Annotated[
    int | None,
    typer.Option(
        "--max-retries", metavar="NUMBER", help="Failures that end it.", rich_help_panel=_JOB
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key", metavar="KEY", help="Submitting again with the same key gives the same job."
    ),
]
Wait = Annotated[
    bool, typer.Option("--wait", "-w", help="Wait for its end; status 1 if that is not a good one.")
]
Follow = Annotated[bool, typer.Option("--follow", help="Show its output, and wait.")]


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
        "max_retries": max_retries,
    }
    given = {field: value for field, value in fields.items() if value is not None}
    if file is not None:
        _refuse_mixture(command, given)
        ignored = {"ignore_image": ignore_image, "ignore_unsupported": ignore_unsupported}
        items = _submit_file(client, file, key, **ignored)
    elif ignore_image or ignore_unsupported:
        end(Status.USAGE, "--ignore-image and --ignore-unsupported are for a file; give -f FILE")
    elif command:
        items = (_submit_command(client, command, given, key),)
    else:
        end(Status.USAGE, "nothing to submit; give -f FILE, or a command after --")
    submitted = [item.job for item in items if item.job is not None]
    crons = [item.cron for item in items if item.cron is not None]
    _tell([*submitted, *crons], as_json=as_json, is_awaited=wait or follow)
    if wait or follow:
        _see_out(client, submitted, follow=follow)


def _refuse_mixture(command: list[str] | None, given: dict[str, Any]) -> None:
    """What a file says is not overruled: it would not be what was reviewed."""
    if command:
        end(Status.USAGE, "there are a file and a command; give one of them")
    for field in given:
        flag = "--" + field.replace("_", "-")
        end(Status.USAGE, f"{flag} is for a command; write {field} into the file")


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
    from phalanx.wire.jobs import BatchItem  # noqa: PLC0415

    return BatchItem(job=client.submit(_document(client, command, given), key=key))


def _document(client: "Client", command: list[str], given: dict[str, Any]) -> dict[str, Any]:
    from phalanx.client.submission import one_role  # noqa: PLC0415

    resources: dict[str, Any] = {name: given.pop(name) for name in _RESOURCES if name in given}
    if all(_is_here(server) for server in client.servers):
        given.setdefault("workdir", str(Path.cwd()))
    return one_role(command, resources=resources, **given)


def _is_here(server: str) -> bool:
    return urlsplit(server).hostname in ("127.0.0.1", "localhost", "::1")


def _submit_file(
    client: "Client", file: str, key: str | None, *, ignore_image: bool, ignore_unsupported: bool
) -> "tuple[BatchItem, ...]":
    """The jobs of a file, all of them or none. Ends the command if one is refused."""
    from phalanx.cli.errors import wrongs_of  # noqa: PLC0415
    from phalanx.client.errors import InvalidError  # noqa: PLC0415

    try:
        reply = client.submit_file(
            contents(file),
            key=key,
            ignore_image=ignore_image,
            ignore_unsupported=ignore_unsupported,
        )
    except InvalidError as error:
        end(Status.USAGE, *(about(file, wrong) for wrong in wrongs_of(error.info)))
    for warning in reply.warnings:
        warn(str(warning.get("message", warning)))
    for queue in reply.queues:
        note(f"queue {queue} is set")
    return reply.results


def _tell(made: "list[SubmitReply | CronView]", *, as_json: bool, is_awaited: bool) -> None:
    from phalanx.wire.crons import CronView  # noqa: PLC0415

    if as_json:
        print_json(made[0] if len(made) == 1 else made)
    for each in made:
        for warning in each.warnings:
            warn(str(warning.get("message", warning)))
        if not as_json:
            name = f"{each.namespace}/{each.name}"
            typer.echo(name if isinstance(each, CronView) else each.id)
    if len(made) == 1 and not is_awaited:
        [one] = made
        if isinstance(one, CronView):
            note(f"due next at {one.next_at}; `phalanx cron show {one.name}` shows its runs")
        elif one.reason is not None:
            note(f"it waits: {one.reason['message']}; `phalanx why {one.name}` says what helps")
        else:
            told = formatting.counted_as(one.size, "task")
            note(f"{told}; `phalanx logs -f {one.name}` shows the output")


def _see_out(client: "Client", submitted: "list[SubmitReply]", *, follow: bool) -> NoReturn:
    """Wait for all of them, and end well only if all did."""
    worst = Status.OK
    for job in submitted:
        try:
            if follow:
                wait_for_start(client, job.id)
                print_output(client.logs(job.id, follow=True))
            ended = wait_for(client, job.id)
        except KeyboardInterrupt:
            note(f"it goes on without you; `phalanx cancel {job.name}` stops it")
            raise
        tell_end(ended)
        worst = max(worst, status_of(ended))
    raise typer.Exit(worst)
