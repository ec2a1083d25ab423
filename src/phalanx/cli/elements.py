"""Elements of an array as a table: `phalanx jobs ARRAY`, and the failed ones in `phalanx job`."""

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from phalanx.cli import formatting
from phalanx.cli.exits import Status, end
from phalanx.cli.output import Narrow, note, print_json, print_trimmed, table_of
from phalanx.core.model import ENDED, Phase

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.jobs import ElementView, JobDetail

_MAX_PAGE = 1000
_NARROW = Narrow(cut=("PARAMETERS", "REASON"), drop=("ATTEMPT",))


def refuse_filters(**filters: str | None) -> None:
    """The elements of an array are in one namespace and queue, and have one name."""
    for name, value in filters.items():
        if value is not None:
            end(Status.USAGE, f"--{name} does not select elements of an array; leave it out")


def list_elements(
    client: "Client", reference: str, phase: Phase | None, most: int | None, *, as_json: bool
) -> None:
    array = client.find(reference)
    page = _MAX_PAGE if most is None else min(_MAX_PAGE, most + 1)
    # One more than is listed, to know whether there are more.
    fetched = list(
        islice(client.elements(array, phase=phase, page=page), None if most is None else most + 1)
    )
    listed = fetched[:most]
    if as_json:
        print_json(listed)
        return
    if not listed:
        note("no elements match" if phase else "no elements")
        return
    print_trimmed(elements_table(listed))
    if len(listed) < len(fetched):
        note(f"more elements exist; list them with -n {2 * len(listed)} or --all")


#: Elements that a user looks for first.
_BY_INTEREST = (
    Phase.RUNNING, Phase.STARTING, Phase.STOPPING,
    Phase.FAILED, Phase.TIMED_OUT, Phase.PENDING, Phase.CANCELLED, Phase.DONE,
)  # fmt: skip


def latest_elements(client: "Client", array: str, most: int) -> "list[ElementView]":
    """At most so many elements: those that run, then those that failed, then the others."""
    listed: list[ElementView] = []
    for phase in _BY_INTEREST:
        if len(listed) < most:
            listed += islice(client.elements(array, phase=phase, page=most), most - len(listed))
    return listed


def elements_table(listed: "Sequence[ElementView]") -> Table:
    rows = [
        (
            element.id,
            formatting.styled(element.phase),
            str(element.attempt)
            if element.attempt
            else "never ran"
            if _has_ended(element)
            else "-",
            formatting.params_text(element.params),
            "" if element.phase is Phase.DONE else element.cause or "",
        )
        for element in listed
    ]
    headings = ["ELEMENT", "PHASE", "#ATTEMPT", "PARAMETERS", "REASON"]
    omitted = {at for at in (3, 4) if not any(row[at] for row in rows)}
    kept = [at for at in range(len(headings)) if at not in omitted]
    return table_of(
        [headings[at] for at in kept], [[row[at] for at in kept] for row in rows], _NARROW
    )


def _has_ended(element: "ElementView") -> bool:
    return element.phase in ENDED


def refuse_array(client: "Client", job: str) -> None:
    """End the command if the job is an array, which has no tasks of its own."""
    detail = client.get(job)
    if detail.elements is not None:
        end(
            Status.REFUSED,
            f"job {detail.name} is an array; list its elements with `phalanx jobs {detail.name}`",
        )


def print_first_failed(job: "JobDetail") -> None:
    """The first elements of an array that did not succeed, and how to see the others."""
    if not job.first_failed:
        note("", f"list its elements with `phalanx jobs {job.name}`")
        return
    typer.echo()
    print_trimmed(elements_table(job.first_failed))
    first = f"{job.name}[{job.first_failed[0].index}]"
    note(
        "",
        f"list all with `phalanx jobs {job.name}`",
        f"read the output of one with `phalanx logs '{first}'`",
        f"run those that failed again with `phalanx retry {job.name} --failed`",
    )
