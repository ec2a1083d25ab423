"""Quantities of the Kubernetes API as the planner's amounts.

`cpu` is counted in thousandths, as is `nvidia.com/gpu`, which the planner calls `gpu`; every other
resource in whole units. Requests round up and allocatable amounts round down.
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor

from phalanx.core.node import DEVICE, GPU
from phalanx.core.spec import quantities

#: Names of resources in Kubernetes → names in the planner.
RESOURCE_NAMES = {"nvidia.com/gpu": GPU}
#: The allocatable number of pods is not a resource that pods request.
PODS = "pods"
_SCALES = {"cpu": 1000, GPU: DEVICE}

#: Exact amounts by their name in Kubernetes.
ExactAmounts = dict[str, Fraction]


@lru_cache(maxsize=1 << 16)
def exact(quantity: str) -> Fraction:
    return Fraction(quantities.quantity(quantity))


def exact_amounts(given: Mapping[str, str]) -> ExactAmounts:
    return {name: exact(quantity) for name, quantity in given.items()}


def added(some: ExactAmounts, more: ExactAmounts) -> ExactAmounts:
    """The sum of two amounts of each resource."""
    return {name: some.get(name, Fraction()) + more.get(name, Fraction()) for name in some | more}


def largest(*amounts: ExactAmounts) -> ExactAmounts:
    """The largest amount of each resource."""
    result: ExactAmounts = {}
    for each in amounts:
        for name, amount in each.items():
            result[name] = max(result.get(name, amount), amount)
    return result


def requested(amounts: ExactAmounts) -> dict[str, int]:
    """Amounts that a pod requests, rounded up. Amounts of 0 are left out."""
    return {_named(name): ceil(_scaled(name, each)) for name, each in amounts.items() if each > 0}


def allocatable(given: Mapping[str, str]) -> dict[str, int]:
    """Amounts that a node offers, rounded down, without the number of pods."""
    return {
        _named(name): floor(_scaled(name, exact(quantity)))
        for name, quantity in given.items()
        if name != PODS
    }


def _named(name: str) -> str:
    return RESOURCE_NAMES.get(name, name)


def _scaled(name: str, amount: Fraction) -> Fraction:
    if _named(name) == GPU:
        # A device plugin offers whole devices only.
        return Fraction(ceil(amount) * DEVICE)
    return amount * _SCALES.get(name, 1)
