"""The jobs around one as a tree: what it runs after, upwards, and what runs after it, downwards."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rich.text import Text
from rich.tree import Tree

from phalanx.cli import formatting

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.jobs import JobDetail, Relative

#: How many jobs are looked at; a family may be very large.
_MOST = 50


def trees(client: "Client", job: "JobDetail") -> list[Tree]:
    """None for a job that is alone."""
    grown = []
    for head, relatives in (("runs after", _before), ("before", _after)):
        if relatives(job):
            tree = Tree(Text(head, style="dim"))
            _grow(client, tree, relatives(job), relatives, {job.id})
            grown.append(tree)
    return grown


def _before(job: "JobDetail") -> "Iterable[Relative]":
    return job.after


def _after(job: "JobDetail") -> "Iterable[Relative]":
    return job.dependants


def _grow(
    client: "Client",
    tree: Tree,
    relatives: "Iterable[Relative]",
    further: "Callable[[JobDetail], Iterable[Relative]]",
    seen: set[str],
) -> None:
    from phalanx.client import NotFoundError  # noqa: PLC0415

    for relative in relatives:
        branch = tree.add(_line(relative))
        if relative.id in seen or relative.phase is None:
            continue
        if len(seen) >= _MOST:
            branch.add(Text("…", style="dim"))
            continue
        seen.add(relative.id)
        try:
            found = client.get(relative.id)
        except NotFoundError:
            continue  # removed just now
        _grow(client, branch, further(found), further, seen)


def _line(relative: "Relative") -> Text:
    name = "" if relative.name in ("", relative.id) else f" {relative.name}"
    phase = formatting.state(relative.phase) if relative.phase else Text("gone", style="dim")
    return Text.assemble(f"{relative.id}{name} ", phase)
