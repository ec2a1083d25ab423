"""Readers of settings. Variables and flags are strings, so every reader also takes a string.

A reader returns the value in its normal form, or raises Invalid with the reason and the cure. The
functions named `printed_…` write a value as a user would.
"""

from phalanx.core.spec import durations, names, quantities, schema
from phalanx.core.spec.fields import Reader, boolean, integer, refusal, shown, text
from phalanx.core.time_units import SECOND, Micros
from phalanx.plan.model import OrderKey

#: The highest price of an hour of one resource.
_MAX_PRICE = 1e9


def number(low: int, high: int) -> Reader[int]:
    read = integer(low, high)

    def from_text(value: object) -> int:
        return read(int(value) if isinstance(value, str) and _is_whole(value) else value)

    return from_text


def _is_whole(value: str) -> bool:
    return value.removeprefix("-").isascii() and value.removeprefix("-").isdigit()


def truth(value: object) -> bool:
    return boolean({"true": True, "false": False}.get(str(value).lower(), value))


def positive(value: object) -> Micros:
    """A duration longer than 0."""
    micros = durations.duration(value)
    if not micros:
        raise refusal(f"is {shown(value)}; write a duration longer than 0")
    return micros


def seconds(value: object) -> float:
    """A duration longer than 0, in seconds."""
    return positive(value) / SECOND


def seconds_or_zero(value: object) -> float:
    """A duration in seconds, also 0."""
    return durations.duration(value) / SECOND


def printed_seconds(value: float) -> str:
    return durations.printed(round(value * SECOND))


def size(value: object) -> int:
    size_bytes = quantities.amount("memory", value)
    if not size_bytes:
        raise refusal(f"is {shown(value)}; write a size larger than 0")
    return size_bytes


def decimal(high: int) -> Reader[float]:
    """A reader of numbers from 0 to `high`."""

    def read_number(value: object) -> float:
        try:
            number = float(value) if isinstance(value, int | float | str) else -1.0
        except ValueError:
            number = -1.0
        if isinstance(value, bool) or not 0 <= number <= high:
            raise refusal(f"is {shown(value)}; write a number from 0 to {high}")
        return number

    return read_number


def filled(value: object) -> str:
    """A string that is not empty."""
    if not text(value):
        raise refusal("is empty; write a value, or leave the setting out")
    return text(value)


def store(value: object) -> str:
    place = filled(value)
    kind, colon, rest = place.partition(":")
    if place == "memory" or (colon and rest and kind in ("sqlite", "postgres", "postgresql")):
        return place
    raise refusal(f"is {shown(value)}; write memory, sqlite:PATH or postgres://USER@HOST/DATABASE")


def url(value: object) -> str:
    address = filled(value)
    if not address.startswith(("http://", "https://")):
        raise refusal(f"is {shown(value)}; write a URL like https://scheduler.example:8080")
    return address.rstrip("/")


def ports(value: object) -> tuple[int, int]:
    parts = value.split("-") if isinstance(value, str) else value
    if isinstance(parts, list | tuple) and len(parts) == 2:
        read = number(1, 65535)
        low, high = read(parts[0]), read(parts[1])
        if low <= high:
            return low, high
    raise refusal(f"is {shown(value)}; write the first and the last port, like 29500-32767")


def priority_classes(value: object) -> dict[str, int]:
    read = number(-(2**31), 2**31 - 1)
    named = _named(value, "names and priorities, like high=1000,low=-10")
    return {name: read(priority) for name, priority in named.items()}


def _named(value: object, what: str) -> dict[str, object]:
    """A table from the file, or `name=value,…`."""
    named = value
    if isinstance(value, str) and value:
        pairs = [pair.partition("=") for pair in value.split(",")]
        named = {name if equals else "": each for name, equals, each in pairs}
    if not isinstance(named, dict) or not all(named):
        raise refusal(f"is {shown(value)}; write {what}")
    return named


def secret_providers(value: object) -> tuple[str, ...]:
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not listed or not all(map(_is_provider, listed)):
        raise refusal(
            f"is {shown(value)}; write one or more of built-in, files:DIR and environment:PREFIX"
        )
    return tuple(listed)


def _is_provider(value: object) -> bool:
    kind, _, argument = str(value).partition(":")
    return value == "built-in" or (kind in ("files", "environment") and bool(argument))


def run_as_users(value: object) -> dict[str, tuple[str, ...]]:
    """Users by namespace."""
    named = _named(value, "namespaces and users, like ml=alice+bob,infra=deploy")
    return {names.dns_label(name): _users(users) for name, users in named.items()}


def namespace_labels(value: object) -> dict[str, dict[str, str]]:
    """Labels by namespace."""
    named = _named(value, "namespaces and labels, like ml=tier:gold+team:vision,web=tier:silver")
    return {names.dns_label(name): _labels(labels) for name, labels in named.items()}


def _labels(value: object) -> dict[str, str]:
    labels: object = value
    if isinstance(value, str):
        pairs = [pair.partition(":") for pair in value.split("+")]
        labels = {name if colon else "": each for name, colon, each in pairs}
    if not isinstance(labels, dict) or not all(labels):
        raise refusal(f"has {shown(value)}; write labels, like tier:gold+team:vision")
    return {names.label_key(name): text(each) for name, each in labels.items()}


def printed_labels(labels: dict[str, dict[str, str]]) -> str:
    return ",".join(
        f"{namespace}={'+'.join(f'{name}:{value}' for name, value in each.items())}"
        for namespace, each in labels.items()
    )


def _users(value: object) -> tuple[str, ...]:
    listed = value.split("+") if isinstance(value, str) else value
    if not isinstance(listed, list):
        raise refusal(f"has {shown(value)}; write users, like alice+bob")
    return tuple(map(names.user, listed))


def image_map(value: object) -> dict[str, str]:
    """Images by the images that they replace."""
    named = _named(value, "images and their replacements, like train:7=registry.local/train:7")
    return {schema.image(name): schema.image(each) for name, each in named.items()}


def printed_images(images: dict[str, str]) -> str:
    return ",".join(f"{name}={image}" for name, image in images.items())


def printed_users(users: dict[str, tuple[str, ...]]) -> str:
    return ",".join(f"{namespace}={'+'.join(each)}" for namespace, each in users.items())


def printed_classes(classes: dict[str, int]) -> str:
    return ",".join(f"{name}={priority}" for name, priority in classes.items())


def prices(value: object) -> dict[str, int]:
    """Prices per hour by resource, in millionths."""
    named = _named(value, "resources and prices per hour, like gpu=3.50,cpu=0.04")
    return {names.resource(name): _price(price) for name, price in named.items()}


def _price(value: object) -> int:
    try:
        price = float(str(value).removesuffix("/h"))
    except ValueError:
        price = -1.0
    if isinstance(value, bool) or not 0 <= price <= _MAX_PRICE:
        raise refusal(f"has {shown(value)}; write a price per hour, like 3.50")
    return round(price * 1_000_000)


def printed_prices(millionths: dict[str, int]) -> str:
    return ",".join(f"{name}={price / 1_000_000:g}" for name, price in millionths.items())


def order(value: object) -> tuple[OrderKey, ...]:
    keys = value.split(",") if isinstance(value, str) else value
    if isinstance(keys, list | tuple) and keys and len(set(keys)) == len(keys):
        try:
            return tuple(OrderKey(key) for key in keys)
        except ValueError:
            pass
    known = ",".join(OrderKey)
    raise refusal(f"is {shown(value)}; write one or more of these keys, each once: {known}")


def printed_ports(first_and_last: tuple[int, int]) -> str:
    return f"{first_and_last[0]}-{first_and_last[1]}"


def printed_size(size_bytes: int) -> str:
    return str(quantities.printed("memory", size_bytes))
