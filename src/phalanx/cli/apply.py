"""`phalanx apply`: show what a file of queues changes, and set all of them or none."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from phalanx.cli import formatting
from phalanx.cli.connection import with_client
from phalanx.cli.exits import Status, end
from phalanx.cli.files import IgnoreUnsupported, about, contents
from phalanx.cli.options import Yes, confirm
from phalanx.cli.output import Json, console, note, print_json, warn

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.workers import QueueChange, QueuesReply, QueueView

File = Annotated[
    str,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="File with queues, native or Volcano's; - reads standard input.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the changes without applying them.")]


@with_client
def apply(  # noqa: PLR0913
    client: "Client",
    *,
    file: File,
    yes: Yes = False,
    dry_run: DryRun = False,
    ignore_unsupported: IgnoreUnsupported = False,
    as_json: Json = False,
) -> None:
    """Create or update the queues of a file, all or none. Other queues are unchanged."""
    text = contents(file)
    reply = _request(client, text, file, dry_run=True, ignore_unsupported=ignore_unsupported)
    for warning in reply.warnings:
        warn(str(warning.get("message", warning)))
    if not as_json:
        for change in reply.changes:
            _print_change(change)
    if not reply.changes:
        note("no changes: all queues are up to date")
    elif not dry_run:
        confirm("Apply these changes?", yes=yes, refused="no queue was changed")
        reply = _request(client, text, file, dry_run=False, ignore_unsupported=ignore_unsupported)
        note(f"{formatting.plural(len(reply.changes), 'queue')} set")
    if as_json:
        print_json(reply)


def _request(client: "Client", text: bytes, file: str, **flags: bool) -> "QueuesReply":
    from phalanx.cli.errors import problems_of  # noqa: PLC0415
    from phalanx.client.errors import InvalidError  # noqa: PLC0415

    try:
        return client.apply_queues(text, **flags)
    except InvalidError as error:
        end(Status.USAGE, *(about(file, problem) for problem in problems_of(error.info)))


def _print_change(change: "QueueChange") -> None:
    before = {} if change.before is None else _fields(change.before)
    out, is_new = console(), change.before is None
    out.print(Text(f"queue {change.after.name}" + (" (new)" if is_new else "")))
    for field, new in _fields(change.after).items():
        old = before.get(field)
        if is_new:
            out.print(Text(f"  + {field}: {new}", style="green"))
        elif old != new:
            out.print(Text(f"  - {field}: {old}", style="red"))
            out.print(Text(f"  + {field}: {new}", style="green"))


def _fields(queue: "QueueView") -> dict[str, str]:
    from phalanx.core.spec.schema import QUEUE_FIELDS  # noqa: PLC0415

    return {field: _text(getattr(queue, field)) for field in QUEUE_FIELDS}


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return formatting.amounts(value)
    if isinstance(value, tuple):
        return ", ".join(value) or "-"
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
