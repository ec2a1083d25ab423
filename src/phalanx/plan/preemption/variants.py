"""What a search for victims tries one after the other: among which candidates, in which domain."""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from phalanx.core.spec.job import PackMode
from phalanx.plan.model import PendingGang
from phalanx.plan.placement.amounts import hardness
from phalanx.plan.preemption.candidates import EvictionUnit
from phalanx.plan.preemption.eligibility import EvictionEligibility
from phalanx.plan.state.capacity import FreeCapacity

#: At most this many domains are tried in a search.
_DOMAINS_TRIED = 16


def candidate_pools(
    eligibility: EvictionEligibility, units: list[EvictionUnit]
) -> Iterator[list[EvictionUnit]]:
    """The units of the preemptor's queue, the units of other queues, and all of them.

    All of them may be enough where neither is: with a victim in its own queue, the preemptor's
    queue uses less and may reclaim more.
    """
    own = [unit for unit in units if eligibility.is_preemption(unit)]
    if 0 < len(own) < len(units):
        yield own
        yield [unit for unit in units if not eligibility.is_preemption(unit)]
    yield units


def domain_variants(
    gangs: Sequence[PendingGang], capacity: FreeCapacity
) -> Iterator[Sequence[PendingGang]]:
    """The gangs as they are; a single gang that requires a domain is bound to each in turn.

    Heuristic: the domains in which most tasks fit already come first.
    """
    gang = gangs[0]
    pack = gang.pack
    required = pack is not None and pack.mode is PackMode.REQUIRE and gang.domain is None
    if pack is None or not required or len(gangs) > 1:
        yield gangs
        return
    codes, names = capacity.table.domains(pack.by)
    by_code = list(names)
    role = max(gang.roles, key=hardness)
    labelled = codes >= 0
    counts = capacity.fit(role.request).counts[labelled]
    places = np.bincount(codes[labelled], weights=counts, minlength=len(names))
    for domain in np.argsort(-places, kind="stable")[:_DOMAINS_TRIED].tolist():
        yield (replace(gang, domain=by_code[domain]),)
