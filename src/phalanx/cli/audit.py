"""`phalanx audit`: who changed what, from where."""

from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from phalanx.cli import formatting
from phalanx.cli.connection import with_client
from phalanx.cli.exits import Status, end
from phalanx.cli.options import whole_number
from phalanx.cli.output import Json, note, print_json, print_table

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.audit import AuditView

_TIME_FORM = "write a duration like 2h, or a time like 2026-01-31T12:00:00Z"
#: How much of a token's name and of an address is shown.
_NAME_CHARS, _ADDRESS_CHARS = 14, 15

Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", help="Records from this time on, or of the last 2h or 7d."
    ),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="Records before this time, or until 2h ago."),
]
By = Annotated[
    str | None,
    typer.Option("--by", metavar="TOKEN", help="Records of this token; local means no token."),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", metavar="NAMESPACE", help="Records of jobs of this namespace."),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target", metavar="TARGET", help="Records of this job id, worker, queue, cron or token."
    ),
]
Limit = Annotated[
    int,
    typer.Option(
        "--limit",
        metavar="NUMBER",
        parser=whole_number(1),
        help="The most records to print.",
    ),
]


@with_client
def audit(  # noqa: PLR0913
    client: "Client",
    *,
    since: Since = None,
    until: Until = None,
    by: By = None,
    namespace: Namespace = None,
    target: Target = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List who changed what, from where, and which requests were refused; newest first."""
    records = client.audit(
        since=_time("--since", since),
        until=_time("--until", until),
        principal=by,
        namespace=namespace,
        target=target,
        page=min(limit, 1000),
    )
    listed = list(islice(records, limit))
    if as_json:
        print_json(listed)
    elif not listed:
        note("no records match")
    else:
        print_table(
            ["TIME (UTC)", "TOKEN", "FROM", "ACTION", "TARGET", "OUTCOME"], map(_row, listed)
        )
        if len(listed) == limit:
            note(f"the newest {limit} records; use --limit or --until for more")


def _time(option: str, given: str | None) -> str | None:
    """The time that an option means, as the server reads it."""
    from phalanx.core.errors import Invalid  # noqa: PLC0415
    from phalanx.core.spec.durations import duration  # noqa: PLC0415

    if given is None:
        return None
    try:
        return (formatting.now() - timedelta(microseconds=duration(given))).isoformat()
    except (Invalid, OverflowError):
        pass
    try:
        formatting.parse_time(given)
    except ValueError:
        end(Status.USAGE, f"{option} is {given}; {_TIME_FORM}")
    return given


def _row(record: "AuditView") -> list[str | Text]:
    outcome = f"{record.outcome}: {record.code}" if record.code else record.outcome
    if record.count > 1:
        outcome += f" ({record.count} times)"
    style = {"done": "green", "refused": "red"}.get(record.outcome, "yellow")
    return [
        f"{formatting.parse_time(record.time):%m-%d %H:%M:%S}",
        _cut(record.principal or "-", _NAME_CHARS),
        _cut(record.remote or "-", _ADDRESS_CHARS),
        record.action,
        record.target or "-",
        Text(outcome, style=style),
    ]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
