"""`phalanx status`: the cluster in a few lines."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from phalanx.cli import formatting
from phalanx.cli.connection import with_client
from phalanx.cli.output import Json, print_fields, print_json
from phalanx.core.spec.quantities import capacity, native
from phalanx.wire.servers import ServersView

if TYPE_CHECKING:
    from phalanx.client import Client

_RESOURCES = ("gpu", "cpu", "memory")


class ClusterStatus(msgspec.Struct, frozen=True):
    servers: ServersView
    workers: dict[str, int]  #: by status
    capacity: dict[str, Any]  #: of the workers that are not lost
    free: dict[str, Any]
    running: int  #: jobs with tasks that have a place
    pending: int
    stopped_queues: tuple[str, ...]


@with_client
def status(client: "Client", *, as_json: Json = False) -> None:
    """Show the cluster in a few lines: workers, capacity in use, jobs and stopped queues.

    phalanx status
    """
    workers, queues = client.workers(), client.queues(usage=True)
    present = [worker for worker in workers if worker.lost_at is None]
    top = [queue.usage for queue in queues if queue.parent is None and queue.usage is not None]
    view = ClusterStatus(
        servers=client.leader_and_standbys(),
        workers=dict(Counter(worker.status for worker in workers)),
        capacity=_total(worker.resources for worker in present),
        free=_total(worker.free for worker in present),
        running=sum(usage.running for usage in top),
        pending=sum(usage.pending for usage in top),
        stopped_queues=tuple(queue.name for queue in queues if queue.stopped),
    )
    if as_json:
        print_json(view)
        return
    by_status = ", ".join(f"{count} {name}" for name, count in sorted(view.workers.items()))
    print_fields(
        [
            ("server", servers_text(view.servers, client.servers)),
            ("workers", by_status or "none; start one with `phalanx worker`"),
            *((name, _in_use(view, name)) for name in view.capacity),
            ("jobs", f"{view.running} running, {view.pending} pending"),
            ("stopped queues", ", ".join(view.stopped_queues)),
        ]
    )


def servers_text(servers: ServersView, given: tuple[str, ...]) -> str:
    """One line per server, with its role if there are several."""
    if servers.leader is None:
        return ", ".join(given)
    if not servers.standbys:
        return servers.leader.url
    lines = [f"{servers.leader.url} leader"]
    for each in servers.standbys:
        silent = "" if each.silent_s is None else f", not heard for {each.silent_s} s"
        lines.append(f"{each.url} standby{silent}")
    return "\n".join(lines)


def _total(amounts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    total: Counter[str] = Counter()
    for each in amounts:
        total.update(capacity(each))
    order = [*_RESOURCES, *sorted(total.keys() - set(_RESOURCES))]
    return native({name: total[name] for name in order if name in total})


def _in_use(view: ClusterStatus, name: str) -> str:
    """`3 of 8 in use`."""
    whole = capacity(view.capacity)[name]
    used = native({name: whole - capacity(view.free).get(name, 0)})[name]
    rounded = (formatting.rounded_amount(name, each) for each in (used, view.capacity[name]))
    return "{} of {} in use".format(*rounded)
