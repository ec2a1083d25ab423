"""What a search for victims tries one after the other: among which candidates, in which domain."""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
from msgspec.structs import replace

from phalanx.core.spec.job import PackMode
from phalanx.plan.model import PendingGang, RoleRequest
from phalanx.plan.placement.amounts import hardness
from phalanx.plan.preemption.candidates import CandidatePool, EvictionUnit
from phalanx.plan.preemption.eligibility import EvictionEligibility
from phalanx.plan.preemption.victim_set import SearchSpace
from phalanx.plan.state.nodes import UNLIMITED, Ints, places_by_domain

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
    gangs: Sequence[PendingGang], space: SearchSpace, pool: CandidatePool
) -> Iterator[Sequence[PendingGang]]:
    """The gangs as they are; a single gang that requires a domain is bound to each in turn.

    Nothing is yielded if a single gang would not fit without all of the units, and no domain in
    which it would not. Heuristic: the domains in which most tasks fit already come first.
    """
    gang = gangs[0]
    if len(gangs) > 1:
        yield gangs
        return
    role = max(gang.roles, key=hardness)
    need = role.need or (gang.need if len(gang.roles) == 1 else 0)
    could_fit = _counts_without(pool, space, role)
    pack = gang.pack
    if pack is None or pack.mode is not PackMode.REQUIRE or gang.domain is not None:
        if could_fit.sum() >= need:
            yield gangs
        return
    table = space.capacities[0].table
    codes, names = table.domains(pack.by)
    fits = space.capacities[0].fit(role.request).counts
    places = places_by_domain(fits, codes, len(names))
    enough = places_by_domain(could_fit, codes, len(names)) >= max(need, 1)
    by_code = list(names)
    order = (domain for domain in np.argsort(-places, kind="stable").tolist() if enough[domain])
    for domain in islice(order, _DOMAINS_TRIED):
        yield (replace(gang, domain=by_code[domain]),)


def _counts_without(pool: CandidatePool, space: SearchSpace, role: RoleRequest) -> Ints:
    """At most this many tasks of a role fit on each node if all units of a pool are evicted."""
    table, request = space.capacities[0].table, role.request
    vector, free = table.vector(request.resources), space.capacities[0].free
    mask = table.mask(request)
    if space.allowed is not None:
        mask = mask & space.allowed
    counts: Ints = np.where(mask, UNLIMITED if request.per_node is None else request.per_node, 0)
    # Shared devices may become whole, so whole devices are no bound.
    for row, amount in ((0, 1), *vector.measured):
        freed = np.bincount(pool.nodes, weights=pool.amounts[:, row], minlength=len(mask))
        np.minimum(counts, (free[row] + freed.astype(np.int64)) // amount, out=counts)
    np.maximum(counts, 0, out=counts)
    return counts
