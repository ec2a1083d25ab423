"""Whether a scheduler leads, as its lease shows: without one, reasons on pods go stale."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

import msgspec

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.errors import ApiStatusError
from phalanx.kube.api.resources import LEASES
from phalanx.kube.leadership import LAST_LEADER, LEASE_NAME, SERVED_NAMES
from phalanx.kube.objects.lease import Lease

#: Clocks of machines differ by this much.
_CLOCK_SKEW = timedelta(seconds=5)


class SchedulerLeader(msgspec.Struct, frozen=True):
    """The scheduler that leads, or the last one that did; no name if none ever has."""

    name: str
    leads: bool
    until: datetime | None = None  #: when its lease ended, or ends


async def scheduler_leader(client: ApiClient, names: Collection[str]) -> SchedulerLeader | None:
    """The leader of the schedulers that serve one of these names; None if the user may not read
    leases. Raises like `ApiClient.request`."""
    try:
        params = {"fieldSelector": f"metadata.name={LEASE_NAME}"}
        leases = await client.list_all(LEASES, params)
    except ApiStatusError as error:
        if error.code != 403:
            raise
        return None
    serving = [lease for lease in leases if not _served(lease).isdisjoint(names)]
    views = [_view(lease, datetime.now(UTC)) for lease in serving]
    views.sort(key=lambda view: (view.leads, view.until.timestamp() if view.until else 0.0))
    return views[-1] if views else SchedulerLeader("", leads=False)


def _served(lease: Lease) -> set[str]:
    return set(lease.metadata.annotations.get(SERVED_NAMES, "").split(","))


def _view(lease: Lease, now: datetime) -> SchedulerLeader:
    spec = lease.spec
    last = lease.metadata.annotations.get(LAST_LEADER, "")
    if not spec.holder_identity or spec.renew_time is None:
        return SchedulerLeader(last, leads=False, until=spec.renew_time)
    until = spec.renew_time + timedelta(seconds=spec.lease_duration_seconds)
    return SchedulerLeader(spec.holder_identity, leads=now < until + _CLOCK_SKEW, until=until)
