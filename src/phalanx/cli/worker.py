"""`phalanx worker`: run tasks on this machine until the agent is stopped, or remove a worker."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.agent.containers.runtime_choice import RuntimeChoice
from phalanx.cli.completion import Worker
from phalanx.cli.connection import with_client
from phalanx.cli.help_pages import HelpCommand
from phalanx.cli.log_options import Format, Level
from phalanx.cli.options import one_of, whole_number
from phalanx.cli.settings import refuse
from phalanx.cli.task_users import user_policy
from phalanx.cli.visible_text import say
from phalanx.client.settings import DEFAULT_SERVER, pin_for, token_in, token_variable
from phalanx.core.errors import Invalid
from phalanx.core.model import Protocol
from phalanx.core.spec.fields import Reader
from phalanx.core.spec.job import NEEDS_AGENT, NEEDS_RUNTIME, NEEDS_USERS
from phalanx.core.spec.names import label_key, label_value, worker_id
from phalanx.core.spec.quantities import capacity
from phalanx.host.interpreter import import_structlog
from phalanx.server.config import state_directory
from phalanx.server.options import LogFormat, LogLevel

if TYPE_CHECKING:
    from phalanx.agent.link.task_policy import TaskPolicy
    from phalanx.agent.worker import WorkerSettings
    from phalanx.client import Client

#: Processes and threads of one task.
DEFAULT_PROCESSES = 4096

Urls = Annotated[
    list[str] | None,
    typer.Option(
        "--server",
        envvar="PHALANX_SERVER",
        metavar="URL",
        help=f"Server URL; repeat it, or separate with commas, to name the standbys too."
        f" [default: {DEFAULT_SERVER}]",
    ),
]
Fingerprint = Annotated[
    str | None,
    typer.Option(
        "--fingerprint",
        envvar="PHALANX_FINGERPRINT",
        metavar="SHA256",
        help="Fingerprint of the server's certificate authority, as the server prints it.",
    ),
]
WorkerId = Annotated[
    str | None,
    typer.Option(
        "--id",
        envvar="PHALANX_WORKER",
        metavar="ID",
        help="Worker id, unique in the cluster. [default: the host name]",
    ),
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        envvar="PHALANX_WORKER_STATE",
        metavar="DIR",
        help="Directory for the worker's state. [default: worker, in the state directory]",
    ),
]
Resources = Annotated[
    str | None,
    typer.Option(
        "--resources",
        envvar="PHALANX_RESOURCES",
        metavar="NAME=AMOUNT,…",
        help="Resources of the worker, like gpu=8,cpu=64,memory=512Gi; the others are detected.",
    ),
]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        envvar="PHALANX_LABELS",
        metavar="NAME=VALUE",
        help="Label that jobs can select workers by; repeat for more.",
    ),
]
Slots = Annotated[
    int | None,
    typer.Option(
        "--slots",
        envvar="PHALANX_SLOTS",
        metavar="NUMBER",
        parser=whole_number(1),
        help="Maximum number of tasks at a time.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        envvar="PHALANX_ADDRESS",
        metavar="HOST",
        help="Address at which other workers reach this one. [default: the local address of the"
        " connection to the server]",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="PHALANX_TOKEN_FILE",
        metavar="FILE",
        help="File with the join token, with which the worker joins the cluster once; it can also"
        " be in PHALANX_TOKEN.",
    ),
]
Keep = Annotated[
    bool,
    typer.Option(
        "--keep",
        envvar="PHALANX_KEEP",
        help="On SIGTERM, leave the tasks running for the next agent on this machine.",
    ),
]
CpuQuota = Annotated[
    bool,
    typer.Option(
        "--cpu-quota",
        envvar="PHALANX_CPU_QUOTA",
        help="Limit each task to the CPUs that it asks for, even while CPUs are idle.",
    ),
]
Processes = Annotated[
    int,
    typer.Option(
        "--task-processes",
        envvar="PHALANX_TASK_PROCESSES",
        metavar="NUMBER",
        parser=whole_number(0),
        help="Maximum number of processes and threads of a task; 0 for no limit.",
    ),
]
TaskUser = Annotated[
    list[str] | None,
    typer.Option(
        "--task-user",
        envvar="PHALANX_TASK_USER",
        metavar="NAMESPACE=USER",
        help="User that runs the tasks of a namespace; USER alone for all other namespaces.",
    ),
]
TaskUids = Annotated[
    str | None,
    typer.Option(
        "--task-uids",
        envvar="PHALANX_TASK_UIDS",
        metavar="FIRST-LAST",
        help="Range from which each namespace without a user gets a uid of its own.",
    ),
]
Runtime = Annotated[
    RuntimeChoice,
    typer.Option(
        "--container-runtime",
        envvar="PHALANX_CONTAINER_RUNTIME",
        metavar="NAME",
        parser=one_of(RuntimeChoice),
        help="Container runtime: podman, docker, none (the worker runs no images), or auto (podman,"
        " or else Docker).",
    ),
]
ContainerMounts = Annotated[
    list[str] | None,
    typer.Option(
        "--container-mount",
        envvar="PHALANX_CONTAINER_MOUNT",
        metavar="PATH[:TARGET][:ro]",
        help="File or folder of this machine that is mounted in every container; repeat for more.",
    ),
]
AllowPrivileged = Annotated[
    bool,
    typer.Option(
        "--allow-privileged",
        envvar="PHALANX_ALLOW_PRIVILEGED",
        help="Run containers that ask for privileged, for added capabilities, or for the user of"
        " another namespace.",
    ),
]


app = typer.Typer(invoke_without_command=True)


@app.command("remove", cls=HelpCommand)
@with_client
def remove(client: "Client", *, name: Worker) -> None:
    """Remove a worker that will not return. None of its tasks may still run.

    phalanx worker remove w-3
    """
    from phalanx.cli.output import note  # noqa: PLC0415, it would slow down every start of a worker

    is_present = any(each.id == name and each.status == "active" for each in client.workers())
    client.remove_worker(name)
    say(f"worker {name} removed")
    if is_present:
        note(f"an agent that still runs joins again; keep tasks away with `phalanx cordon {name}`")


@app.callback()
def worker(  # noqa: PLR0913, PLR0917
    context: typer.Context,
    server: Urls = None,
    fingerprint: Fingerprint = None,
    name: WorkerId = None,
    state_dir: StateDir = None,
    resources: Resources = None,
    label: Labels = None,
    slots: Slots = None,
    address: Address = None,
    token_file: TokenFile = None,
    keep: Keep = False,
    cpu_quota: CpuQuota = False,
    task_processes: Processes = DEFAULT_PROCESSES,
    task_user: TaskUser = None,
    task_uids: TaskUids = None,
    runtime: Runtime = RuntimeChoice.AUTO,
    container_mount: ContainerMounts = None,
    allow_privileged: AllowPrivileged = False,
    log_format: Format = LogFormat.TEXT,
    log_level: Level = LogLevel.INFO,
) -> None:
    """Run tasks on this machine until SIGTERM or Ctrl-C. Then its jobs run on other workers.

    phalanx worker --server https://scheduler.example:8080 --token-file join-token
    """
    if context.invoked_subcommand is not None:
        return
    import_structlog()
    from phalanx.agent.hardware import detect  # noqa: PLC0415
    from phalanx.agent.link.sync_loop import Registration  # noqa: PLC0415
    from phalanx.agent.link.task_policy import LimitPolicy, TaskPolicy  # noqa: PLC0415
    from phalanx.agent.worker import WorkerSettings  # noqa: PLC0415
    from phalanx.cli.container_options import ContainerChoice, container_policy  # noqa: PLC0415

    detected, amounts = detect(), _amounts(resources)
    has_gpus = "gpu" in detected.resources and "gpu" not in amounts
    state_dir = (state_dir or state_directory(os.environ) / "worker").absolute()
    choice = ContainerChoice(runtime, container_mount or [], allow_privileged, has_gpus)
    users = user_policy(task_user or [], task_uids)
    limits = LimitPolicy(cpu_quota, task_processes or None)
    tasks = TaskPolicy(limits, users, container_policy(choice, state_dir))
    registration = Registration(
        id=_checked("--id", name or socket.gethostname(), worker_id),
        protocol=Protocol.SYNC,
        resources=detected.resources | amounts,
        tags=(detected.labels if has_gpus else {}) | _labels(label or []) | _ability_labels(tasks),
        exec_addr=address,
        slots=slots,
    )
    settings = WorkerSettings(
        servers=(servers := _urls(server)),
        fingerprint=_fingerprint(fingerprint, servers),
        state_dir=state_dir,
        registration=registration,
        keep=keep,
        join_token=_token(token_file),
        tasks=tasks,
    )
    _run(settings, log_format, log_level)


def _run(settings: "WorkerSettings", log_format: LogFormat, log_level: LogLevel) -> None:
    from phalanx.agent import worker as agent  # noqa: PLC0415
    from phalanx.server import log_output  # noqa: PLC0415

    log_output.set_up(log_format, log_level)
    try:
        status = agent.run(settings)
    except agent.WorkerStartError as error:
        refuse(str(error))
    raise typer.Exit(status)


def _ability_labels(tasks: "TaskPolicy") -> dict[str, str]:
    """The labels that say which tasks the worker can run."""
    of_users = NEEDS_USERS if tasks.users.is_set else {}
    of_containers = {}
    if not isinstance(tasks.containers, str):
        of_containers = NEEDS_RUNTIME | {"container_runtime": tasks.containers.runtime.name}
    return NEEDS_AGENT | of_users | of_containers


def _urls(given: list[str] | None) -> tuple[str, ...]:
    return tuple(_url(url) for urls in given or [DEFAULT_SERVER] for url in urls.split(","))


def _url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        refuse(f"--server: {url} is not a URL; write it like https://scheduler.example:8080")
    return url


def _fingerprint(text: str | None, servers: tuple[str, ...]) -> str | None:
    if not text:
        return None
    try:
        return pin_for(text, servers)
    except ValueError as error:
        refuse(f"--fingerprint: {error}")


def _pairs(flag: str, written: list[str]) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in written if pair]
    for key, equals, _ in pairs:
        if not key or not equals:
            refuse(f"{flag}: {key or '='} has no value; write it like name=value")
    return {key: value for key, _, value in pairs}


def _amounts(written: str | None) -> dict[str, Any]:
    amounts = _pairs("--resources", (written or "").split(","))
    try:
        capacity(amounts)
    except Invalid as error:
        refuse(*(f"--resources: {problem.path} {problem.message}" for problem in error.problems))
    return amounts


def _labels(written: list[str]) -> dict[str, str]:
    pairs = _pairs("--label", written)
    return {
        _checked("--label", key, label_key): _checked(f"--label {key}", value, label_value)
        for key, value in pairs.items()
    }


def _checked(flag: str, name: str, read: Reader[str]) -> str:
    """The name, refused here if the server would refuse it."""
    try:
        return read(name)
    except Invalid as error:
        refuse(*(f"{flag} {problem.message}" for problem in error.problems))


def _token(file: Path | None) -> Callable[[], str | None]:
    """A function that returns the token. A file is read at each call, so it can be replaced."""
    try:
        given = token_variable(os.environ) if file is None else token_in(file)
    except ValueError as error:
        refuse(str(error))
    return (lambda: given) if file is None else lambda: token_in(file)
