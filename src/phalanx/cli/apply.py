"""`phalanx apply`: the queues of a file, all or none, after a look at what changes."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from phalanx.cli import formatting
from phalanx.cli.connection import with_client
from phalanx.cli.exits import Status, end
from phalanx.cli.files import IgnoreUnsupported, about, contents
from phalanx.cli.output import Json, console, note, print_json, warn

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.workers import QueueChange, QueuesReply, QueueView

File = Annotated[
    str,
    typer.Option(
        "--file", "-f", metavar="FILE", help="Queues, ours or Volcano's; - is standard input."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]


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
    """Set the queues of a file, all or none. Those that are not in it stay as they are."""
    text = contents(file)
    found = _ask(client, text, file, dry_run=True, ignore_unsupported=ignore_unsupported)
    for warning in found.warnings:
        warn(str(warning.get("message", warning)))
    if not as_json:
        for change in found.changes:
            _print_change(change)
    if not found.changes:
        note("nothing changes: all queues are so already")
    elif not dry_run:
        _be_sure(yes=yes)
        found = _ask(client, text, file, dry_run=False, ignore_unsupported=ignore_unsupported)
        note(f"{formatting.counted_as(len(found.changes), 'queue')} set")
    if as_json:
        print_json(found)


def _ask(client: "Client", text: bytes, file: str, **how: bool) -> "QueuesReply":
    from phalanx.cli.errors import wrongs_of  # noqa: PLC0415
    from phalanx.client.errors import InvalidError  # noqa: PLC0415

    try:
        return client.apply_queues(text, **how)
    except InvalidError as error:
        end(Status.USAGE, *(about(file, wrong) for wrong in wrongs_of(error.info)))


def _be_sure(*, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        end(Status.USAGE, "nobody can be asked here; give --yes to set these, or --dry-run to look")
    if not typer.confirm("Set these?", err=True):
        end(Status.UNSUCCESSFUL, "nothing was changed")


def _print_change(change: "QueueChange") -> None:
    before = {} if change.before is None else _fields(change.before)
    out, is_new = console(), change.before is None
    out.print(Text(f"queue {change.after.name}" + (" is new" if is_new else "")))
    for field, now in _fields(change.after).items():
        old = before.get(field)
        if is_new:
            out.print(Text(f"  + {field}: {now}", style="green"))
        elif old != now:
            out.print(Text(f"  - {field}: {old}", style="red"))
            out.print(Text(f"  + {field}: {now}", style="green"))


def _fields(queue: "QueueView") -> dict[str, str]:
    from phalanx.core.spec.schema import QUEUE_FIELDS  # noqa: PLC0415

    return {field: _shown(getattr(queue, field)) for field in QUEUE_FIELDS}


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return formatting.amounts(value)
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
