"""The table of a server's settings: name, reader, default and description of each.

`lost_after` here is `lost_after` in the file, `PHALANX_LOST_AFTER` in the environment and
`--lost-after` on the command line.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

from phalanx.core.settings import CoreSettings
from phalanx.core.spec import durations
from phalanx.core.spec.fields import Reader, as_is, one_of
from phalanx.core.time_units import MINUTE, SECOND
from phalanx.engine.settings import EngineSettings
from phalanx.server import option_readers as read

PREFIX = "PHALANX_"


class TlsMode(StrEnum):
    OFF = "off"
    AUTO = "auto"


class ImagePinning(StrEnum):
    REFUSE = "refuse"
    WARN = "warn"
    OFF = "off"


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
    form: str  #: the kind of value, in a word: `duration`, `text`
    read: Reader[Any]
    default: object  #: in its normal form; None where the server derives it
    help: str
    write: Callable[[Any], object] = as_is  #: the normal form as a user would write it
    otherwise: str = ""  #: describes the value where there is no default
    target: str = ""  #: the field of `engine.settings` or `core.settings` that it fills

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def shown(self, value: object) -> str:
        """A value as text, for people."""
        return self.otherwise if value is None else _plain(self.write(value))


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_ENGINE, _CORE = EngineSettings(), CoreSettings()
_MIB = 1024**2


def _of_engine(group: str, name: str, text: str, **given: Any) -> Option:
    """A setting of the engine, whose times are in seconds there and durations here."""
    field = f"{name}_s" if hasattr(_ENGINE, f"{name}_s") else name
    default = getattr(_ENGINE, field)
    shape: dict[str, Any] = {
        "form": "duration",
        "read": read.seconds,
        "write": read.printed_seconds,
    } | given
    return Option(name, group, default=default, help=text, target=f"engine.{field}", **shape)


def _of_core(group: str, name: str, text: str, *, field: str = "", **given: Any) -> Option:
    """A setting of the core; its field there has the same name unless one is given."""
    field = field or name
    shape: dict[str, Any] = {
        "form": "duration",
        "read": read.positive,
        "write": durations.printed,
    } | given
    default = getattr(_CORE, field)
    return Option(name, group, default=default, help=text, target=f"core.{field}", **shape)


def _count(low: int = 1, high: int = 1_000_000) -> dict[str, Any]:
    return {"form": "number", "read": read.number(low, high), "write": as_is}


def _size(name: str, default: int, text: str, **given: Any) -> Option:
    return Option(name, "Limits", "size", read.size, default, text, read.printed_size, **given)


_SERVER: tuple[Option, ...] = (
    Option(
        "store",
        "Server",
        "text",
        read.store,
        None,
        "The database: memory, sqlite:PATH or postgres://USER@HOST/DATABASE.",
        otherwise="sqlite:phalanx.db in the state directory",
    ),
    Option(
        "store_wait",
        "Server",
        "duration",
        read.seconds,
        60.0,
        "How long a server that starts waits for a database that cannot be reached.",
        read.printed_seconds,
    ),
    Option("host", "Server", "text", read.filled, "127.0.0.1", "The address to listen on."),
    Option(
        "port",
        "Server",
        "number",
        read.number(0, 65535),
        8080,
        "The port to listen on; 0 picks a free one.",
    ),
    Option(
        "advertise_url",
        "Server",
        "url",
        read.url,
        None,
        "The URL under which clients, agents and standbys reach this server. Its host name is"
        " accepted in requests without a token.",
        otherwise="from host and port",
    ),
    Option(
        "name",
        "Server",
        "text",
        read.filled,
        None,
        "The server's name in logs.",
        otherwise="host name and process id",
    ),
    Option(
        "tls",
        "Server",
        "auto or off",
        one_of(TlsMode),
        TlsMode.OFF,
        "Use HTTPS with a certificate that is made and renewed automatically. Its authority is in"
        " the database; clients and workers pin it by its fingerprint.",
    ),
    Option(
        "tls_cert",
        "Server",
        "path",
        read.filled,
        None,
        "A TLS certificate of your own, a PEM file. It is loaded again when the file changes.",
    ),
    Option("tls_key", "Server", "path", read.filled, None, "The private key of the certificate."),
    Option(
        "loopback_open",
        "Server",
        "true or false",
        read.truth,
        True,
        "Require no token while the server listens on the loopback address only.",
    ),
    Option(
        "dashboard",
        "Server",
        "true or false",
        read.truth,
        True,
        "Serve the dashboard at /.",
    ),
    Option(
        "renew_credentials",
        "Server",
        "duration",
        read.seconds,
        86_400.0,
        "How often workers that have joined renew their credentials.",
        read.printed_seconds,
    ),
    Option(
        "secret_key_file",
        "Server",
        "path",
        read.filled,
        None,
        "A file with the key that encrypts secrets in the database; phalanx secret new-key"
        " creates one. All servers of a cluster need the same. Without it, no secret can be set.",
        otherwise="none",
    ),
    Option(
        "secret_providers",
        "Server",
        "name,name,…",
        read.secret_providers,
        ("built-in",),
        "Where the values of secrets come from, in this order: built-in is the database, files:DIR"
        " are files DIR/NAMESPACE/NAME/KEY of the server, environment:PREFIX are its variables"
        " PREFIXNAMESPACE__NAME__KEY.",
        ",".join,
    ),
    Option(
        "stop_wait",
        "Server",
        "duration",
        read.seconds,
        10.0,
        "How long a server may take to shut down after SIGTERM.",
        read.printed_seconds,
    ),
    Option(
        "retention",
        "Server",
        "duration",
        read.positive,
        30 * 24 * 3600 * SECOND,
        "How long idempotency keys, and finished jobs with events and output, are kept.",
        durations.printed,
    ),
    Option(
        "audit_retention",
        "Server",
        "duration",
        read.positive,
        90 * 24 * 3600 * SECOND,
        "How long audit records are kept.",
        durations.printed,
    ),
)

_LOGS: tuple[Option, ...] = (
    Option(
        "log_format",
        "Logs",
        "text or json",
        one_of(LogFormat),
        LogFormat.TEXT,
        "The format of the server's log.",
    ),
    Option(
        "log_level",
        "Logs",
        "debug, info, warning or error",
        one_of(LogLevel),
        LogLevel.INFO,
        "The lowest level that is logged.",
    ),
)

_LEADING: tuple[Option, ...] = (
    _of_engine(
        "Leadership",
        "lease",
        "How long a leader leads without renewing its lease; then a standby takes over.",
    ),
    _of_engine("Leadership", "turn_limit", "The most commands that share one commit.", **_count()),
)

_WORKERS: tuple[Option, ...] = (
    _of_engine("Workers", "sync_wait", "How long an agent's sync call is held open at most."),
    _of_engine("Workers", "lost_after", "A worker that does not report for this long is lost."),
    _of_engine(
        "Workers",
        "stall",
        "Server pauses longer than this extend every worker's deadline by the pause.",
    ),
    _of_engine(
        "Workers",
        "brake_share",
        "The loss brake engages when more than this share of the workers, and more than"
        " `brake_count`, fall silent at once.",
        form="0 to 1",
        read=read.decimal(1),
        write=as_is,
    ),
    _of_engine(
        "Workers",
        "brake_count",
        "The loss brake engages only above this number of workers.",
        **_count(0),
    ),
    _of_engine(
        "Workers", "brake_window", "Losses within this time count together for the loss brake."
    ),
    _of_engine(
        "Workers",
        "brake_duration",
        "How long the loss brake keeps silent workers from being declared lost.",
    ),
    _of_core(
        "Workers",
        "suspect_window",
        "How long a failure or an abnormal value counts against a worker.",
    ),
    _of_core(
        "Workers",
        "suspect_jobs",
        "A worker is cordoned after this many jobs, of at least two users, failed or had an"
        " abnormal value on it within `suspect_window`, and ran elsewhere. Of jobs that it could"
        " not start, those of one user suffice.",
        **_count(),
    ),
    _of_core(
        "Workers",
        "avoid_cap",
        "How many workers a job avoids at most after failures on them.",
        **_count(0),
    ),
)

_PLANNING: tuple[Option, ...] = (
    _of_engine("Planning", "plan_tick", "The longest time between two plans."),
    _of_engine(
        "Planning",
        "starve_after",
        "A gang that has been pending for longer is starving: capacity is kept for it.",
    ),
    _of_engine(
        "Planning",
        "max_wait",
        "A gang that has been pending for this many times its time limit, and this many times the"
        " median wait of gangs of its size, is overdue: workers are kept for it before all other"
        " gangs. 0 turns this off.",
        form="number",
        read=read.decimal(1000),
        write=as_is,
    ),
    _of_engine(
        "Planning",
        "share_half_life",
        "A queue that used less than its share may exceed it later. What it left unused counts"
        " half as much after this time. With 0 nothing is remembered.",
        read=read.seconds_or_zero,
    ),
    _of_engine(
        "Planning",
        "min_runtime",
        "A gang is not reclaimed by another queue before it has run for this long.",
    ),
    _of_engine(
        "Planning",
        "move_work",
        "GPU-seconds of work since the last checkpoint that may be lost when gangs are moved so"
        " that one pending gang fits. Only gangs of queues with `consolidation` are moved.",
        form="number",
        read=read.decimal(1_000_000_000),
        write=as_is,
    ),
    _of_engine(
        "Planning",
        "move_cooldown",
        "A gang is moved at most once in this time.",
    ),
    _of_engine(
        "Planning",
        "order",
        "The keys by which the pending gangs of a queue are ordered: `priority`, `size`, "
        "`created`, `shortest`, which is the shortest time limit first, with aging, and `user`, "
        "which is the user with the smallest share of the queue first.",
        form="keys",
        read=read.order,
        write=",".join,
    ),
    _of_engine(
        "Planning",
        "backfill",
        "Reserve a start time for gangs that do not fit yet, and start shorter gangs before it.",
        form="true or false",
        read=read.truth,
        write=lambda value: str(value).lower(),
    ),
    _of_engine("Planning", "plan_debounce", "How long changes are collected after a plan."),
)

_JOBS: tuple[Option, ...] = (
    _of_core(
        "Jobs",
        "accept_timeout",
        "A reservation is cancelled when its workers have not accepted it after this time.",
        field="accept",
    ),
    _of_core(
        "Jobs",
        "pull_timeout",
        "The same, for jobs with container images, which the workers have to pull first.",
        field="pull",
    ),
    _of_core(
        "Jobs",
        "start_timeout",
        "A released task fails when it has not started after this time.",
        field="start",
    ),
    _of_core(
        "Jobs",
        "stop_floor",
        "The least time that a worker has to report that a task has stopped.",
    ),
    _of_core(
        "Jobs",
        "stop_slack",
        "The time beyond a job's grace period that a worker has to report a stop.",
    ),
    _of_core(
        "Jobs",
        "nomination",
        "How long capacity is kept for a preemptor after its victims' stop deadline.",
    ),
    _of_core(
        "Jobs",
        "regroup_after",
        "A gang that has run below its minimum for this long is requeued.",
    ),
    _of_core("Jobs", "healthy_after", "A job that has run for this long has its failures reset."),
    _of_core(
        "Jobs",
        "shrink_slack",
        "Failures within this time after a gang was shrunk are not counted.",
    ),
    _of_core(
        "Jobs",
        "long_running",
        "An event warns about an attempt that has run for this long and has saved nothing, if the "
        "job declares no checkpoint.",
    ),
    _of_core("Jobs", "backoff_cap", "The longest backoff between two attempts of a job."),
    _of_core(
        "Jobs",
        "ports",
        "The range of ports from which each gang gets its rendezvous port.",
        form="first-last",
        read=read.ports,
        write=read.printed_ports,
    ),
    Option(
        "priority_classes",
        "Jobs",
        "name=number,…",
        read.priority_classes,
        {},
        "The priority of each priority class; a table in the file.",
        read.printed_classes,
        "none",
    ),
    Option(
        "gang_waiting_time",
        "Jobs",
        "duration",
        read.positive,
        10 * MINUTE,
        "The waiting time of a Koordinator gang that sets none: how long it may hold places before"
        " it has its minimum.",
        durations.printed,
    ),
    Option(
        "run_as_users",
        "Jobs",
        "name=user+user,…",
        read.run_as_users,
        {},
        "The users that the jobs of each namespace may choose with run_as_user; a table in the"
        " file.",
        read.printed_users,
        "none",
    ),
    Option(
        "image_pinning",
        "Jobs",
        "refuse, warn or off",
        one_of(ImagePinning),
        ImagePinning.REFUSE,
        "What happens to a job whose image has a tag that its registry does not resolve to a"
        " digest: it is refused, or accepted with a warning. With off, tags are not resolved.",
    ),
    Option(
        "namespace_labels",
        "Jobs",
        "name=label:value+label:value,…",
        read.namespace_labels,
        {},
        "Labels of namespaces, which policies can ask for; a table of tables in the file.",
        read.printed_labels,
        "none",
    ),
    Option(
        "image_map",
        "Jobs",
        "image=image,…",
        read.image_map,
        {},
        "Container images that are replaced by others, by their whole reference, when a job is"
        " submitted; a table in the file.",
        read.printed_images,
        "none",
    ),
    _of_core(
        "Jobs",
        "price",
        "The price of an hour of one CPU, GPU or GiB of memory; a table in the file.",
        form="name=number,…",
        read=read.prices,
        write=read.printed_prices,
        otherwise="none",
    ),
)

_LIMITS: tuple[Option, ...] = (
    _of_engine(
        "Limits",
        "event_buffer_size",
        "How many events a reader of the event stream can be behind without a resync.",
        **_count(),
    ),
    Option(
        "namespace_jobs",
        "Limits",
        default=50_000,
        help="How many unfinished jobs and crons a namespace can have.",
        target="core.namespace_jobs",
        **_count(high=10**9),
    ),
    Option(
        "namespace_tasks",
        "Limits",
        default=200_000,
        help="How many tasks the unfinished jobs of a namespace can have.",
        target="core.namespace_tasks",
        **_count(high=10**9),
    ),
    _size(
        "namespace_size",
        256 * _MIB,
        "How large the specifications of the unfinished jobs and crons of a namespace can be.",
        target="core.namespace_bytes",
    ),
    Option(
        "submit_rate",
        "Limits",
        default=2000,
        help="How many tasks per second a namespace can submit, after ten times as many at once.",
        target="engine.submit_rate",
        **_count(high=10**9),
    ),
    _size("body_limit", _MIB, "The largest request body."),
    _size(
        "checkpoint_limit",
        _ENGINE.checkpoint_limit_bytes,
        "The largest checkpoint of a task.",
        target="engine.checkpoint_limit_bytes",
    ),
    _size(
        "output_limit",
        _MIB,
        "How much output is kept of each attempt of a task; older output is dropped.",
    ),
)

OPTIONS: tuple[Option, ...] = (
    *_SERVER,
    *_LOGS,
    *_LEADING,
    *_WORKERS,
    *_PLANNING,
    *_JOBS,
    *_LIMITS,
)
BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS}
GROUPS: tuple[str, ...] = tuple(dict.fromkeys(option.group for option in OPTIONS))
