"""Commands that read a Kubernetes cluster: which one, and how errors end them."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn, TypeVar

import typer

from phalanx.cli import formatting
from phalanx.cli.exits import Status, end
from phalanx.cli.options import extended, quiet_option
from phalanx.cli.output import be_quiet, warn
from phalanx.cli.settings import refuse

if TYPE_CHECKING:
    from phalanx.kube.api.client import ApiClient
    from phalanx.kube.api.errors import ApiStatusError, ApiUnreachableError
    from phalanx.kube.views.leader import SchedulerLeader

T = TypeVar("T")

_PANEL = "Cluster"
#: A person waits for these requests.
_TIMEOUT_S = 10.0

Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="Kubeconfig file. [default: the files of KUBECONFIG, ~/.kube/config, or the pod's"
        " service account]",
        rich_help_panel=_PANEL,
    ),
]
Context = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="Context of the kubeconfig file. [default: its current]",
        rich_help_panel=_PANEL,
    ),
]
Names = Annotated[
    str,
    typer.Option(
        "--scheduler-names",
        envvar="PHALANX_KUBE_SCHEDULER_NAMES",
        metavar="NAME,…",
        help="Schedule pods with these names in spec.schedulerName.",
    ),
]
Nodes = Annotated[
    str,
    typer.Option(
        "--nodes",
        envvar="PHALANX_KUBE_NODES",
        metavar="SELECTOR",
        help="Label selector: place pods only on these nodes. [default: all nodes]",
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAMESPACE",
        help="Namespace. [default: that of the context]",
        rich_help_panel=_PANEL,
    ),
]
AllNamespaces = Annotated[
    bool,
    typer.Option("--all-namespaces", "-A", help="Read all namespaces.", rich_help_panel=_PANEL),
]
_READ_NAMES = Annotated[
    str,
    typer.Option(
        "--scheduler-names",
        envvar="PHALANX_KUBE_SCHEDULER_NAMES",
        metavar="NAME,…",
        help="Names that the scheduler serves.",
        rich_help_panel=_PANEL,
    ),
]


class ClusterAddress(NamedTuple):
    """Which cluster a command reads, and whose pods."""

    kubeconfig: Path | None
    context: str | None
    scheduler_names: tuple[str, ...]


_OPTIONS: dict[str, tuple[Any, Any]] = {
    "kubeconfig": (Kubeconfig, None),
    "context": (Context, None),
    "scheduler_names": (_READ_NAMES, "phalanx"),
    "quiet": (Annotated[bool, quiet_option(_PANEL)], False),
}


def with_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a cluster to a command whose first parameter is a `ClusterAddress`."""

    def run(**given: Any) -> None:
        check_installed()
        be_quiet(given.pop("quiet"))
        kubeconfig, context = given.pop("kubeconfig"), given.pop("context")
        names = split_names(given.pop("scheduler_names"))
        command(ClusterAddress(kubeconfig, context, names), **given)

    more = (
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in _OPTIONS.items()
    )
    return extended(command, run, *more)


def check_installed() -> None:
    """End the command if the packages for Kubernetes are missing."""
    try:
        import aiohttp  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        refuse(f"{error.name} is not installed; install phalanx with the extra kubernetes")


def split_names(given: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in given.split(",") if name.strip())
    if not names:
        refuse("--scheduler-names: name at least one scheduler")
    return names


def ask(address: ClusterAddress, question: "Callable[[ApiClient], Awaitable[T]]") -> T:
    """The answer of a function that reads the cluster. An error ends the command; a warning says if
    no scheduler leads."""
    from phalanx.kube.api.errors import ApiStatusError, ApiUnreachableError  # noqa: PLC0415
    from phalanx.kube.connection.errors import ConnectionConfigError  # noqa: PLC0415
    from phalanx.kube.node_option import NodeOptionError  # noqa: PLC0415
    from phalanx.kube.rights import MissingRightsError  # noqa: PLC0415

    try:
        answer, leader = asyncio.run(_ask(address, question))
    except (ConnectionConfigError, NodeOptionError) as error:
        end(Status.USAGE, str(error))
    except ApiUnreachableError as error:
        end(Status.UNREACHABLE, no_answer(error))
    except MissingRightsError as error:
        end(Status.REFUSED, str(error))
    except ApiStatusError as error:
        _end_for(error)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if leader is not None and not leader.leads:
        warn(_without_leader(leader, address))
    return answer


def _without_leader(leader: "SchedulerLeader", address: ClusterAddress) -> str:
    names = " or ".join(address.scheduler_names)
    if not leader.name:
        return (
            f"no scheduler has ever served schedulerName {names} in this cluster; install it with"
            " `kubectl apply -k deploy/kubernetes`"
        )
    ended = ""
    if leader.until is not None:
        ended = f", until {formatting.ago(leader.until.isoformat(), formatting.now())}"
    return (
        f"no scheduler serves schedulerName {names} now: {leader.name} was the last{ended}; pods"
        " stay pending, and their reasons may be out of date"
    )


async def _ask(
    address: ClusterAddress, question: "Callable[[ApiClient], Awaitable[T]]"
) -> "tuple[T, SchedulerLeader | None]":
    from phalanx.kube.api.client import ApiClient  # noqa: PLC0415
    from phalanx.kube.connection.kubeconfig import find_connection  # noqa: PLC0415
    from phalanx.kube.views.leader import scheduler_leader  # noqa: PLC0415

    connection = find_connection(address.kubeconfig, address.context)
    async with ApiClient(connection, user_agent="phalanx-cli", timeout_s=_TIMEOUT_S) as client:
        answer = await question(client)
        return answer, await scheduler_leader(client, address.scheduler_names)


def no_answer(error: "ApiUnreachableError") -> str:
    return (
        f"no answer from {error}; check that the cluster runs, or choose another with --kubeconfig"
        " or --context"
    )


def _end_for(error: "ApiStatusError") -> NoReturn:
    if error.code == 401:
        end(
            Status.REFUSED,
            "the API server does not accept the credentials of this context; log in again, or"
            " choose another context with --context",
        )
    end(Status.NOT_FOUND if error.is_not_found else Status.REFUSED, str(error))
