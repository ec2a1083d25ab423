"""Topology domains (racks, zones): in which of them a packed gang is tried, and in which order.

A domain is known by its number in `NodeTable.domains`; nodes without the label have number -1.
"""

from collections.abc import Mapping

import numpy as np

from phalanx.plan.model import PendingGang
from phalanx.plan.placement.amounts import hardness
from phalanx.plan.placement.node_choice import NodeChoice
from phalanx.plan.state.nodes import Floats, Ints, places_by_domain

#: At most this many domains are tried for one gang, the tightest first.
_DOMAINS_TRIED = 64
#: More than any node could leave free: nodes of one domain come before all nodes of the next.
_DOMAIN_STEP = 1e6


def single_domains(
    gang: PendingGang, choice: NodeChoice, codes: Ints, names: Mapping[str, int]
) -> list[int]:
    """Domains that may hold the whole minimum: the gang's own if a part of it runs, else all.

    Heuristic: the tightest first. The domain with the fewest places that are still enough keeps
    the large domains free for large gangs.
    """
    if gang.domain is not None:
        return [names[gang.domain]] if gang.domain in names else []
    role = max(gang.roles, key=lambda role: (role.need, hardness(role)))
    need = role.need or min(gang.need, len(role.tasks))
    if len(gang.roles) > 1:
        need = max(role.need, 0)
    places = places_by_domain(choice.counts(role), codes, len(names))
    tightest = np.argsort(places, kind="stable")
    first = int(np.searchsorted(places[tightest], max(need, 1)))
    domains: list[int] = tightest[first : first + _DOMAINS_TRIED].tolist()
    return domains


def spill_penalty(counts: Ints, codes: Ints, domains: int, wanted: int, home: int | None) -> Floats:
    """Penalty by node that puts `wanted` tasks into as few domains as possible.

    `counts` is how many tasks each node can take, `home` the domain that the gang is in already.
    Nodes in no domain come last.
    """
    places = places_by_domain(counts, codes, domains)
    rank = np.full(domains + 1, domains, float)
    rank[_filling_order(places, wanted, home)] = np.arange(domains)
    penalty: Floats = rank[codes] * _DOMAIN_STEP
    return penalty


def _filling_order(places: Floats, wanted: int, home: int | None) -> Ints:
    """The order in which domains are filled.

    Heuristic: the gang's own domain, then the largest ones, which takes the fewest domains. The
    last domain that is needed is the tightest one that holds the remaining tasks.
    """
    first = places.copy()
    if home is not None:
        first[home] = np.inf
    order = np.argsort(-first, kind="stable")
    filled = int(np.searchsorted(np.cumsum(places[order]), wanted))
    rest, others = wanted - places[order[:filled]].sum(), order[filled:]
    tightness = np.where(places[others] < rest, np.inf, places[others])
    order[filled:] = others[np.argsort(tightness, kind="stable")]
    return order
