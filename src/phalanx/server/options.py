"""Every setting of a server, once: its name, its reader, its default and what it means.

`lost_after` here is `lost_after` in the file, `PHALANX_LOST_AFTER` in the environment and
`--lost-after` on the command line.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

from phalanx.core.settings import CoreSettings
from phalanx.core.spec import durations, names, quantities
from phalanx.core.spec.fields import Reader, as_is, boolean, integer, one_of, refusal, shown, text
from phalanx.core.spec.job import SECOND, Micros
from phalanx.engine.settings import EngineSettings
from phalanx.plan.model import OrderKey

PREFIX = "PHALANX_"
#: No hour of anything costs more.
_DEAREST = 1e9


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Option(NamedTuple):
    name: str
    group: str
    form: str  #: what is written, in a word: `duration`, `text`
    read: Reader[Any]
    default: object  #: in its normal form; None where the server works it out
    help: str
    write: Callable[[Any], object] = as_is  #: the normal form as a user would write it
    otherwise: str = ""  #: what stands in where there is no default
    target: str = ""  #: the field of `engine.settings` or `core.settings` that it fills

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def shown(self, value: object) -> str:
        """A value as a person reads it."""
        return self.otherwise if value is None else _plain(self.write(value))


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# Readers. Variables and flags are strings, so every reader takes a string as well.


def _number(low: int, high: int) -> Reader[int]:
    read = integer(low, high)

    def from_text(value: object) -> int:
        return read(int(value) if isinstance(value, str) and _is_whole(value) else value)

    return from_text


def _is_whole(value: str) -> bool:
    return value.removeprefix("-").isascii() and value.removeprefix("-").isdigit()


def _truth(value: object) -> bool:
    return boolean({"true": True, "false": False}.get(str(value).lower(), value))


def _positive(value: object) -> Micros:
    micros = durations.duration(value)
    if not micros:
        raise refusal(f"is {shown(value)}; it must be longer than nothing")
    return micros


def _seconds(value: object) -> float:
    return _positive(value) / SECOND


def _printed_seconds(value: float) -> str:
    return durations.printed(round(value * SECOND))


def _size(value: object) -> int:
    size = quantities.amount("memory", value)
    if not size:
        raise refusal(f"is {shown(value)}; it must be more than nothing")
    return size


def _share(value: object) -> float:
    try:
        share = float(value) if isinstance(value, int | float | str) else -1.0
    except ValueError:
        share = -1.0
    if isinstance(value, bool) or not 0 <= share <= 1:
        raise refusal(f"is {shown(value)}; write a number from 0 to 1")
    return share


def _filled(value: object) -> str:
    if not text(value):
        raise refusal("is empty; write something, or leave it out")
    return text(value)


def _store(value: object) -> str:
    place = _filled(value)
    kind, colon, rest = place.partition(":")
    if place == "memory" or (colon and rest and kind in ("sqlite", "postgres", "postgresql")):
        return place
    raise refusal(f"is {shown(value)}; write memory, sqlite:PATH or postgres://USER@HOST/DATABASE")


def _url(value: object) -> str:
    url = _filled(value)
    if not url.startswith(("http://", "https://")):
        raise refusal(f"is {shown(value)}; write it like https://scheduler.example:8080")
    return url.rstrip("/")


def _ports(value: object) -> tuple[int, int]:
    parts = value.split("-") if isinstance(value, str) else value
    if isinstance(parts, list | tuple) and len(parts) == 2:
        read = _number(1, 65535)
        low, high = read(parts[0]), read(parts[1])
        if low <= high:
            return low, high
    raise refusal(f"is {shown(value)}; write the first and the last port, like 29500-32767")


def _classes(value: object) -> dict[str, int]:
    read = _number(-(2**31), 2**31 - 1)
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


def _printed_classes(classes: dict[str, int]) -> str:
    return ",".join(f"{name}={priority}" for name, priority in classes.items())


def _prices(value: object) -> dict[str, int]:
    """Millionths for an hour, by resource."""
    named = _named(value, "what an hour of one costs, like gpu=3.50,cpu=0.04")
    return {names.resource(name): _price(price) for name, price in named.items()}


def _price(value: object) -> int:
    try:
        price = float(str(value).removesuffix("/h"))
    except ValueError:
        price = -1.0
    if isinstance(value, bool) or not 0 <= price <= _DEAREST:
        raise refusal(f"has {shown(value)}; write what an hour of one costs, like 3.50")
    return round(price * 1_000_000)


def _printed_prices(prices: dict[str, int]) -> str:
    return ",".join(f"{name}={price / 1_000_000:g}" for name, price in prices.items())


def _order(value: object) -> tuple[OrderKey, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if isinstance(names, list | tuple) and names and len(set(names)) == len(names):
        try:
            return tuple(OrderKey(name) for name in names)
        except ValueError:
            pass
    known = ",".join(OrderKey)
    raise refusal(f"is {shown(value)}; write some of these keys in order: {known}")


def _printed_ports(ports: tuple[int, int]) -> str:
    return f"{ports[0]}-{ports[1]}"


# The table.

_ENGINE, _CORE = EngineSettings(), CoreSettings()


def _of_engine(group: str, name: str, text: str, **given: Any) -> Option:
    """A setting of the engine; its times are floats of seconds there and durations here."""
    field = f"{name}_s" if hasattr(_ENGINE, f"{name}_s") else name
    default = getattr(_ENGINE, field)
    shape: dict[str, Any] = {
        "form": "duration",
        "read": _seconds,
        "write": _printed_seconds,
    } | given
    return Option(name, group, default=default, help=text, target=f"engine.{field}", **shape)


def _of_core(group: str, name: str, text: str, **given: Any) -> Option:
    shape: dict[str, Any] = {
        "form": "duration",
        "read": _positive,
        "write": durations.printed,
    } | given
    default = getattr(_CORE, name)
    return Option(name, group, default=default, help=text, target=f"core.{name}", **shape)


def _count(low: int = 1, high: int = 1_000_000) -> dict[str, Any]:
    return {"form": "number", "read": _number(low, high), "write": as_is}


_MIB = 1024**2


def _printed_size(size: int) -> str:
    return str(quantities.printed("memory", size))


OPTIONS: tuple[Option, ...] = (
    # Where
    Option(
        "store",
        "Server",
        "text",
        _store,
        None,
        "Where everything is kept: memory, sqlite:PATH or postgres://USER@HOST/DATABASE.",
        otherwise="sqlite:phalanx.db in the state directory",
    ),
    Option("host", "Server", "text", _filled, "127.0.0.1", "The address to listen on."),
    Option("port", "Server", "number", _number(0, 65535), 8080, "The port; 0 takes a free one."),
    Option(
        "advertise_url",
        "Server",
        "url",
        _url,
        None,
        "Where others reach this server; standbys send them here.",
        otherwise="from host and port",
    ),
    Option(
        "name",
        "Server",
        "text",
        _filled,
        None,
        "What this server is called in logs.",
        otherwise="the host's name and the process",
    ),
    Option("tls_cert", "Server", "path", _filled, None, "A PEM file; with it, HTTPS is spoken."),
    Option("tls_key", "Server", "path", _filled, None, "The key of the certificate."),
    Option(
        "loopback_open",
        "Server",
        "true or false",
        _truth,
        True,
        "Need no token while the server listens on loopback only.",
    ),
    Option(
        "stop_wait",
        "Server",
        "duration",
        _seconds,
        10.0,
        "After SIGTERM, leave within this time, whatever the store does.",
        _printed_seconds,
    ),
    Option(
        "retention",
        "Server",
        "duration",
        _positive,
        30 * 24 * 3600 * SECOND,
        "How long finished jobs, their events, output and checkpoints are kept.",
        durations.printed,
    ),
    # Logs
    Option("log_format", "Logs", "text or json", one_of(LogFormat), LogFormat.TEXT, "How to log."),
    Option(
        "log_level",
        "Logs",
        "debug, info, warning or error",
        one_of(LogLevel),
        LogLevel.INFO,
        "What to log.",
    ),
    # Leading
    _of_engine("Leading", "lease", "A leader that is silent this long may be succeeded."),
    _of_engine("Leading", "turn_limit", "At most this many commands share one commit.", **_count()),
    # Workers
    _of_engine("Workers", "sync_wait", "How long an agent's call is held at most."),
    _of_engine("Workers", "lost_after", "A worker that is silent this long is lost."),
    _of_engine("Workers", "stall", "A standstill of our own longer than this is nobody's fault."),
    _of_engine(
        "Workers",
        "brake_share",
        "If more than this share of the workers is lost at once, nothing is drained for a while…",
        form="0 to 1",
        read=_share,
        write=as_is,
    ),
    _of_engine("Workers", "brake_count", "…and only if more than this many are.", **_count(0)),
    _of_engine("Workers", "brake_window", "What counts as at once."),
    _of_engine("Workers", "brake_hold", "How long nothing is drained then."),
    _of_core("Workers", "suspect_window", "For how long a failure on a worker is remembered."),
    _of_core(
        "Workers", "suspect_jobs", "This many jobs failing there first cordon a worker.", **_count()
    ),
    _of_core("Workers", "avoid_cap", "How many workers a job remembers to try last.", **_count(0)),
    # Planning
    _of_engine("Planning", "plan_tick", "Plan at least this often."),
    _of_engine(
        "Planning", "starve_after", "A gang that waits longer keeps what it could use from others."
    ),
    _of_engine("Planning", "min_runtime", "What has run for less is not taken back by a queue."),
    _of_engine(
        "Planning",
        "order",
        "By what the gangs of a queue are ordered.",
        form="keys",
        read=_order,
        write=",".join,
    ),
    _of_engine(
        "Planning",
        "backfill",
        "Keep a start time for gangs that do not fit yet, and fill the time before it.",
        form="true or false",
        read=_truth,
        write=lambda value: str(value).lower(),
    ),
    _of_engine("Planning", "plan_debounce", "Let changes gather this long after a plan."),
    # Jobs
    _of_core("Jobs", "accept", "A reservation that is not accepted by then is given back."),
    _of_core("Jobs", "start", "A released task that has not started by then has failed."),
    _of_core("Jobs", "stop_floor", "The least time a worker has to report a stop."),
    _of_core("Jobs", "stop_slack", "The time beyond a job's grace to report a stop."),
    _of_core("Jobs", "nomination", "How long room is kept once its victims had their time."),
    _of_core("Jobs", "regroup_after", "Below its minimum this long, a gang is placed anew."),
    _of_core("Jobs", "healthy_after", "Running this long clears the count of failures."),
    _of_core("Jobs", "shrink_slack", "Failures this soon after a shrink blame nobody."),
    _of_core("Jobs", "backoff_cap", "The longest wait between two attempts of a job."),
    _of_core(
        "Jobs",
        "ports",
        "The ports that gangs are given to meet on.",
        form="first-last",
        read=_ports,
        write=_printed_ports,
    ),
    Option(
        "priority_classes",
        "Jobs",
        "name=number,…",
        _classes,
        {},
        "What names of priority classes stand for; a table in the file.",
        _printed_classes,
        "none",
    ),
    _of_core(
        "Jobs",
        "price",
        "What an hour of one CPU, GPU or GiB costs; a table in the file.",
        form="name=number,…",
        read=_prices,
        write=_printed_prices,
        otherwise="none",
    ),
    # Limits
    _of_engine("Limits", "ring_size", "Events that a stream can resume over.", **_count()),
    Option(
        "body_limit",
        "Limits",
        "size",
        _size,
        _MIB,
        "The largest body of a request.",
        _printed_size,
    ),
    Option(
        "checkpoint_limit",
        "Limits",
        "size",
        _size,
        16 * _MIB,
        "The largest checkpoint that is taken.",
        _printed_size,
    ),
    Option(
        "output_limit",
        "Limits",
        "size",
        _size,
        _MIB,
        "How much of the output of each attempt of a task is kept: the last of it.",
        _printed_size,
    ),
)

BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS}
GROUPS: tuple[str, ...] = tuple(dict.fromkeys(option.group for option in OPTIONS))
