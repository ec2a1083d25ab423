"""Kubernetes quantities, and the resources of tasks, workers and queues as exact integers.

`cpu` and `gpu` are kept in thousandths, `memory` in bytes, every other resource as it is.
Amounts that are negative, smaller than the unit or larger than 64 bits are refused.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction

from phalanx.core.spec.fields import FieldPath, as_key, check_count, mapping, refusal, shown
from phalanx.core.spec.job import Resources
from phalanx.core.spec.names import resource

_BINARY = {
    suffix: 1024**power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
}
_DECIMAL = {
    suffix: Fraction(1000) ** power
    for power, suffix in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)
}
_SUFFIXES = _DECIMAL | {suffix: Fraction(size) for suffix, size in _BINARY.items()}

_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})"
    r"(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]{1,10}))?"
)

LARGEST = 2**63 - 1
#: Resources of one task, worker or queue.
RESOURCE_LIMIT = 64

#: Units of the normal form in one unit of the user, where that is not 1.
_SCALES = {"cpu": 1000, "gpu": 1000, "memory_mb": 1024**2}

#: The unit of the normal form, for messages.
_UNITS = {
    "cpu": "thousandths of a CPU",
    "gpu": "thousandths of a GPU",
    "memory": "bytes",
    "memory_mb": "bytes",
}

#: How to write a quantity, where that is not `_ANY_FORM`.
_FORMS = {"cpu": "a number, like 4, 0.5 or 500m", "gpu": "a number, like 2 or 0.5"}
_ANY_FORM = (
    "a number and one of the suffixes m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei, like 500m or"
    " 32Gi"
)


def quantity(value: object, form: str = _ANY_FORM) -> Fraction | int:
    """A quantity of 0 or more, without a unit."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise refusal(f"is {shown(value)}, not a quantity; write {form}")
    if isinstance(value, int):
        if value < 0:
            raise refusal(f"is {shown(value)}; it cannot be negative")
        return value
    # The shortest decimal of a float is what the user wrote.
    match = _QUANTITY.fullmatch(value if isinstance(value, str) else repr(value))
    if match is None:
        raise refusal(f"is {shown(value)}, not a quantity; write {form}")
    number = Fraction(match["number"])
    if match["sign"] == "-" and number:
        raise refusal(f"is {shown(value)}; it cannot be negative")
    # Larger powers are refused in any case, and take long to compute.
    exponent = max(-100, min(100, int(match["exponent"] or 0)))
    return number * _SUFFIXES[match["suffix"] or ""] * Fraction(10) ** exponent


def amount(name: str, value: object) -> int:
    """The amount of a resource that a task requests or a worker has, in its normal form."""
    count = allowed(name, value)
    if name == "gpu" and count > 1000 and count % 1000:
        raise refusal(
            f"is {shown(value)}; a task uses a fraction of one GPU or whole GPUs: write a number"
            " below 1 or a whole number"
        )
    return count


def allowed(name: str, value: object) -> int:
    """The amount of a resource in a quota or a limit, in its normal form."""
    asked = quantity(value, _FORMS.get(name, _ANY_FORM))
    if name == "memory_mb" and isinstance(value, str) and value[-1:].isalpha():
        raise refusal(f"is {shown(value)}, but memory_mb is a number of MiB; write it as memory")
    exact = asked * _SCALES.get(name, 1)
    if exact > LARGEST:
        raise refusal(f"is {shown(value)}, which is too large; write a smaller amount")
    if exact.denominator != 1:
        of_unit = f" of {_UNITS[name]}" if name in _UNITS else ""
        raise refusal(f"is {shown(value)}, which is not a whole number{of_unit}; round it")
    return exact.numerator


def resources(value: object) -> Resources:
    """The resources that a task requests. Those of amount 0 are left out."""
    return {name: count for name, count in capacity(value).items() if count}


def capacity(value: object) -> Resources:
    """The resources that a worker has. Amounts of 0 are kept."""
    return _amounts(value, amount)


def allowance(value: object) -> Resources:
    """The resources of a quota or a limit. Amounts of 0 are kept."""
    return _amounts(value, allowed)


def _amounts(value: object, read: Callable[[str, object], int]) -> Resources:
    path = FieldPath()
    result: Resources = {}
    given = mapping(value, "a mapping of resources to amounts, like {cpu: 4, memory: 32Gi}")
    check_count(given, RESOURCE_LIMIT, "remove some")
    for name, wanted in given.items():
        with path.at(as_key(name)):
            known = resource(name)
            result["memory" if known == "memory_mb" else known] = read(known, wanted)
    if "memory" in given and "memory_mb" in given:
        path.at("memory_mb").problem("is the same resource as memory; write one of them")
    path.raise_problems()
    return result


def printed(name: str, count: int) -> int | float | str:
    """An amount as a user writes it."""
    if name == "cpu":
        return f"{count}m" if count % 1000 else count // 1000
    if name == "gpu":
        return float(f"{count // 1000}.{count % 1000:03}") if count % 1000 else count // 1000
    if name == "memory" and count:
        for suffix, size in reversed(_BINARY.items()):
            if count % size == 0:
                return f"{count // size}{suffix}"
    return count


def size_text(size_bytes: int) -> str:
    """A number of bytes for people: `512 bytes`, `12.0 MiB`."""
    amount, units = float(size_bytes), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{size_bytes} bytes" if units[0] == "bytes" else f"{amount:.1f} {units[0]}"


def native(amounts: Mapping[str, int]) -> dict[str, object]:
    """Resources as a user writes them."""
    return {name: printed(name, count) for name, count in amounts.items()}
