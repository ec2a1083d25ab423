"""What a search for victims tries one after the other: among whom, and where."""

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
_DOMAINS = 16


def pools(rights: EvictionEligibility, units: list[EvictionUnit]) -> Iterator[list[EvictionUnit]]:
    """The claimant's own queue, the others, and both: once somebody of its own went, it may have a
    right to more of what others have."""
    own = [unit for unit in units if rights.is_preempted(unit)]
    if 0 < len(own) < len(units):
        yield own
        yield [unit for unit in units if not rights.is_preempted(unit)]
    yield units


def variants(claims: Sequence[PendingGang], view: FreeCapacity) -> Iterator[Sequence[PendingGang]]:
    """The claimant, or for a gang that must be in one domain, itself in each of them."""
    claim = claims[0]
    pack = claim.pack
    required = pack is not None and pack.mode is PackMode.REQUIRE and claim.domain is None
    if pack is None or not required or len(claims) > 1:
        yield claims
        return
    codes, values = view.table.domains(pack.by)
    part = max(claim.roles, key=hardness)
    inside = codes >= 0
    counts = view.fit(part.request).counts[inside]
    room = np.bincount(codes[inside], weights=counts, minlength=len(values))
    for n in np.argsort(-room, kind="stable")[:_DOMAINS].tolist():
        yield (replace(claim, domain=values[n]),)
