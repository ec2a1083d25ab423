"""`phalanx kube why`: why pods are pending, and what would let them start."""

from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn

import typer

from phalanx.cli import formatting
from phalanx.cli.exits import Status, end
from phalanx.cli.kube.cluster import ClusterAddress, Namespace, Nodes, ask, with_cluster
from phalanx.cli.output import Json, Narrow, print_json, print_table, print_wrapped
from phalanx.cli.visible_text import say
from phalanx.core.text import listed

if TYPE_CHECKING:
    from datetime import datetime

    from phalanx.kube.api.client import ApiClient
    from phalanx.kube.gangs.gang import KubeGang
    from phalanx.kube.model.cluster_model import ClusterModel
    from phalanx.kube.views.forecast import GangForecast
    from phalanx.kube.views.gangs import GangView
    from phalanx.kube.views.pod_events import PodEvent

Reference = Annotated[
    str, typer.Argument(metavar="POD|GANG", help="Name of a pod or a gang, or NAMESPACE/NAME.")
]
Now = Annotated[
    bool,
    typer.Option(
        "--now",
        help="Plan with the cluster as it is, instead of reading what the scheduler has written;"
        " needs the right to read the whole cluster.",
    ),
]


class Explanation(NamedTuple):
    """What is known about one gang."""

    gang: "GangView"
    forecasts: "list[GangForecast]"
    events: "list[PodEvent]"


@with_cluster
def why(  # noqa: PLR0913
    address: ClusterAddress,
    *,
    reference: Reference,
    namespace: Namespace = None,
    now: Now = False,
    nodes: Nodes = "",
    as_json: Json = False,
) -> None:
    """Explain why pods are pending, and what to do.

    The reasons are those that the scheduler has written to the pods. With --now, the planner
    runs here, and also names what would let the gang start.
    """

    async def read(client: "ApiClient") -> list[Explanation]:
        chosen, name = _split(reference, namespace or client.connection.namespace)
        if now:
            return await _plan_now(client, address, (chosen, name), nodes)
        return await _read_written(client, address, (chosen, name))

    explanations = ask(address, read)
    if as_json:
        print_json([each._asdict() for each in explanations])
        return
    for each in explanations:
        _print(each, planned=now)


def _split(reference: str, namespace: str) -> tuple[str, str]:
    before, slash, name = reference.rpartition("/")
    if "/" in before or not name or (slash and not before):
        end(Status.USAGE, f"POD|GANG is {reference!r}; write NAME or NAMESPACE/NAME")
    return (before, name) if slash else (namespace, name)


async def _read_written(
    client: "ApiClient", address: ClusterAddress, name: tuple[str, str]
) -> list[Explanation]:
    from phalanx.kube.views.cluster_reader import read_gangs  # noqa: PLC0415
    from phalanx.kube.views.gangs import gang_view  # noqa: PLC0415
    from phalanx.kube.views.pod_events import pod_events  # noqa: PLC0415

    model = await read_gangs(client, address.scheduler_names, name[0])
    explanations = []
    for gang in _find(model, name, address):
        names = {pod.metadata.name for pod in gang.pods()}
        events = await pod_events(client, name[0], names)
        explanations.append(Explanation(gang_view(model, gang), [], events))
    return explanations


async def _plan_now(
    client: "ApiClient", address: ClusterAddress, name: tuple[str, str], nodes: str
) -> list[Explanation]:
    from phalanx.host.clock import wall_clock  # noqa: PLC0415
    from phalanx.kube.views.cluster_reader import read_cluster  # noqa: PLC0415
    from phalanx.kube.views.forecast import gang_forecasts  # noqa: PLC0415
    from phalanx.kube.views.gangs import gang_view  # noqa: PLC0415
    from phalanx.plan.cycle import plan  # noqa: PLC0415

    model = await read_cluster(client, address.scheduler_names, nodes)
    gangs = _find(model, name, address)
    at = wall_clock()
    made = plan(model.state, at)
    return [
        Explanation(gang_view(model, gang), list(gang_forecasts(model, made, gang, at)), [])
        for gang in gangs
    ]


def _find(
    model: "ClusterModel", name: tuple[str, str], address: ClusterAddress
) -> "list[KubeGang]":
    """The gangs that the user means. Ends the command if there is none."""
    from phalanx.kube.views.gangs import find_gangs  # noqa: PLC0415

    gangs = list(find_gangs(model, *name))
    if not gangs:
        _end_without_gang(model, name, address)
    return gangs


def _end_without_gang(
    model: "ClusterModel", name: tuple[str, str], address: ClusterAddress
) -> NoReturn:
    from phalanx.kube.views.gangs import (  # noqa: PLC0415
        group_without_pods,
        missing_namespace,
        similar_names,
    )

    key = "/".join(name)
    for pod in model.pods.pods.values():
        if pod.metadata.key == key:
            end(
                Status.REFUSED,
                f"pod {key} has schedulerName {pod.spec.scheduler_name}, which Phalanx does not"
                f" serve here; set it to {address.scheduler_names[0]}, or pass --scheduler-names",
            )
    known = missing_namespace(model, name[0]) or group_without_pods(model, *name)
    if known is not None:
        end(Status.NOT_FOUND, known)
    similar = similar_names(model, *name)
    cure = "`phalanx kube gangs -A` lists all"
    if similar:
        *others, last = similar
        cure = f"did you mean {', '.join(others)}{' or ' * bool(others)}{last}?"
    end(Status.NOT_FOUND, f"no pod or gang {name[1]} in namespace {name[0]}; {cure}")


def _print(found: Explanation, *, planned: bool) -> None:
    gang = found.gang
    kind = "pod" if gang.is_pod else "gang"
    name = f"{kind} {gang.namespace}/{gang.name}"
    if planned and found.forecasts:
        for forecast in found.forecasts:
            print_forecast(f"{kind} {forecast.name}", forecast)
    else:
        print_wrapped(f"{name}: {_state(gang)}")
        if gang.eviction is not None:
            print_wrapped(_restart(gang))
    say(f"queue {gang.queue}, priority {gang.priority}{_minimum(gang)}")
    if gang.reason_at is not None and not planned:
        say(f"reason written {formatting.ago(gang.reason_at.isoformat(), formatting.now())}")
    for text in gang.notes:
        print_wrapped(f"note: {text}")
    say("")
    rows = [[p.name, p.state, p.node or "-", p.reason or "-"] for p in gang.pods]
    print_table(["POD", "STATE", "NODE", "REASON"], rows, Narrow())
    _print_events(found)


def _print_events(found: Explanation) -> None:
    """The history of the pods, without the notes, and without the reason that they have now."""
    gang, now = found.gang, formatting.now()
    shown = (gang.message, *gang.notes)
    earlier = [event for event in found.events if not event.message.endswith(shown)]
    for number, event in enumerate(earlier):
        message = event.message.removeprefix(f"gang {gang.namespace}/{gang.name}: ")
        pods = formatting.plural(event.pods, "pod")
        blank = "" if number else "\n"
        print_wrapped(f"{blank}{formatting.ago(event.at, now)}: {event.reason} ({pods}): {message}")


def _state(gang: "GangView") -> str:
    if gang.state in ("pending", "partial"):
        text = f"{gang.state}: {gang.message}" if gang.message else f"{gang.state}: no reason yet"
        return text if gang.message else f"{text}; is the scheduler running?"
    if gang.eviction is None:
        return gang.state
    evicting = [pod for pod in gang.pods if pod.state == "evicting"]
    stopping = sum(pod.state == "stopping" for pod in gang.pods)
    parts = [f"{formatting.plural(stopping, 'pod')} stopping"] if stopping else []
    if evicting:
        until = max((pod.evicted_at for pod in evicting if pod.evicted_at), default=None)
        parts.append(f"{formatting.plural(len(evicting), 'pod')} to be evicted{_by(until)}")
    return f"{gang.state}: {gang.eviction} ({', '.join(parts)})"


def _by(deadline: "datetime | None") -> str:
    """The time that pods have to save their work."""
    if deadline is None:
        return ""
    return f" when they have saved their work, or at {formatting.local_clock(deadline.isoformat())}"


def _restart(gang: "GangView") -> str:
    """When a gang that is evicted starts again."""
    bare = [pod.name for pod in gang.pods if pod.preemptor and not pod.has_controller]
    if bare:
        return (
            f"starts again: not by itself, because no controller replaces {listed(bare, 3)}; create"
            " the pods again"
        )
    return (
        "starts again: when its controller has created new pods and there is capacity for"
        f" {'the pod' if gang.is_pod else 'the whole gang'}"
    )


def _minimum(gang: "GangView") -> str:
    if gang.is_pod or gang.min_available is None:
        return ""
    pods = formatting.plural(len(gang.pods), "pod")
    return f", {gang.bound} of {pods} bound, minimum {gang.min_available}"


def print_forecast(name: str, forecast: "GangForecast") -> None:
    print_wrapped(f"{name}: {forecast.message}")
    if forecast.remedy is not None:
        print_wrapped(f"remedy: {forecast.remedy}")
    for alternative in forecast.alternatives:
        print_wrapped(f"alternative: {alternative}")
