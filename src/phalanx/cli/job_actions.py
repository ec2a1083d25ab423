"""Changing jobs: `phalanx cancel`, `retry`, `requeue`, `hold`, `release`, `priority`.

All names are looked up before the first job is changed, so a misspelt name changes nothing.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from phalanx.cli.completion import (
    JOB_HELP,
    Candidate,
    Job,
    finished_jobs,
    queues,
    unfinished_jobs,
)
from phalanx.cli.connection import with_client
from phalanx.cli.exits import Status, end
from phalanx.cli.formatting import display_name, element_counts, plural
from phalanx.cli.options import Yes, confirm, whole_number
from phalanx.cli.output import Json, note, print_json
from phalanx.cli.visible_text import say
from phalanx.core.model import ENDED, Phase

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.jobs import JobView

T = TypeVar("T")

#: Jobs that a question lists.
_MOST_SHOWN = 5


def _jobs(completer: Callable[..., list[Candidate]]) -> Any:
    return typer.Argument(
        metavar="JOB", help=JOB_HELP, autocompletion=completer, show_default=False
    )


UnfinishedJobs = Annotated[list[str], _jobs(unfinished_jobs)]
SomeJobs = Annotated[list[str] | None, _jobs(unfinished_jobs)]
FinishedJobs = Annotated[list[str], _jobs(finished_jobs)]
Every = Annotated[
    bool, typer.Option("--all", help="Cancel all unfinished jobs that your token has access to.")
]
OfQueue = Annotated[
    str | None,
    typer.Option(
        "--queue", metavar="NAME", help="Cancel the jobs of this queue.", autocompletion=queues
    ),
]
OfName = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Cancel the jobs of this name."),
]
OfNamespace = Annotated[
    str | None,
    typer.Option("--namespace", metavar="NAME", help="Cancel the jobs of this namespace."),
]
Failed = Annotated[
    bool,
    typer.Option("--failed", help="Run the elements of an array again that did not succeed."),
]
Priority = Annotated[
    int,
    typer.Argument(
        metavar="PRIORITY",
        parser=whole_number(),
        help="New priority; write -- before a negative number.",
    ),
]


@with_client
def cancel(  # noqa: PLR0913
    client: "Client",
    *,
    references: SomeJobs = None,
    every: Every = False,
    queue: OfQueue = None,
    name: OfName = None,
    namespace: OfNamespace = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Cancel jobs, or elements of an array. Running tasks have their grace period to save and exit.

    phalanx cancel train
    phalanx cancel 'sweep[3-5]'
    phalanx cancel --queue lab --yes
    """
    is_filtered = every or any((queue, name, namespace))
    if bool(references) == bool(is_filtered):
        end(Status.USAGE, "give either jobs, or one of --all, --queue, --name and --namespace")
    if is_filtered:
        jobs = list(client.jobs(finished=False, queue=queue, name=name, namespace=namespace))
        if queue is not None and not jobs:
            client.queue(queue)  # ends the command if there is none of this name
        references = _confirmed(jobs, yes=yes)
    _change(client, references or [], client.cancel, _cancelled, as_json=as_json)


def _confirmed(jobs: "list[JobView]", *, yes: bool) -> list[str]:
    """The ids of jobs that the user agrees to cancel."""
    if not jobs:
        note("no unfinished jobs match")
        return []
    names = {job.id: display_name(job) for job in jobs[:_MOST_SHOWN]}
    shown = ", ".join(job if name == "-" else f"{job} ({name})" for job, name in names.items())
    more = f" and {len(jobs) - _MOST_SHOWN} more" if len(jobs) > _MOST_SHOWN else ""
    question = f"Cancel {plural(len(jobs), 'job')}: {shown}{more}?"
    confirm(question, yes=yes, refused="no job was cancelled")
    return [job.id for job in jobs]


def _cancelled(job: "JobView", given: str) -> str:
    if job.elements is None:
        return f"{job.id} {'cancelled' if job.phase in ENDED else 'stopping'}"
    return f"{given} cancelled; the array has {element_counts(job.elements)}"


@with_client
def retry(
    client: "Client", *, references: FinishedJobs, failed: Failed = False, as_json: Json = False
) -> None:
    """Submit ended jobs again, and print the new ids.

    Elements of an array run again in the array, which keeps its id.

    phalanx retry j-7kq2m4xd
    phalanx retry sweep --failed
    phalanx retry 'sweep[3-5]'
    """
    retried = partial(client.retry, failed=failed)
    _change(client, references, retried, _retried, as_json=as_json)


def _retried(job: "JobView", _: str) -> str:
    if job.elements is not None and job.elements.pending < job.elements.total:
        note(element_counts(job.elements))
    return job.id


@with_client
def requeue(client: "Client", *, references: UnfinishedJobs, as_json: Json = False) -> None:
    """Stop jobs and put them back in their queue. Counts no failure."""
    _change(client, references, client.requeue, _requeued, as_json=as_json)


def _requeued(job: "JobView", _: str) -> str:
    if job.phase is Phase.PENDING:
        return f"{job.id} requeued"
    return f"{job.id} stopping; it is requeued when all tasks have stopped"


@with_client
def hold(client: "Client", *, references: UnfinishedJobs, as_json: Json = False) -> None:
    """Keep jobs from starting until they are released. Running tasks continue."""
    _change(client, references, client.hold, _as("on hold"), as_json=as_json)


@with_client
def release(client: "Client", *, references: UnfinishedJobs, as_json: Json = False) -> None:
    """Release jobs that are on hold."""
    _change(client, references, client.release, _as("released"), as_json=as_json)


def _as(state: str) -> "Callable[[JobView, str], str]":
    return lambda job, _: f"{job.id} {state}"


@with_client
def priority(client: "Client", *, reference: Job, number: Priority, as_json: Json = False) -> None:
    """Change the priority of a job."""
    changed = client.set_priority(client.find(reference), number)
    if as_json:
        print_json([changed])
        return
    say(f"{changed.id} has priority {changed.priority}")


def _change(
    client: "Client",
    references: Sequence[str],
    change: Callable[[str], T],
    describe: Callable[[T, str], str],
    *,
    as_json: bool,
) -> None:
    """Change each job, and print what `describe` says about it and its reference. A job that
    refuses the change does not stop the others."""
    from phalanx.client import ConflictError, InvalidError, NotFoundError  # noqa: PLC0415

    try:
        found = [client.find(each) for each in references]
    except NotFoundError as error:
        end(Status.NOT_FOUND, f"{error}; no job was changed" if references[1:] else str(error))
    changed, refusals = [], []
    for job, reference in zip(found, references, strict=True):
        try:
            changed.append(change(job))
        except InvalidError as error:
            if not any(each.path == "elements" for each in error.details):
                raise
            end(Status.USAGE, *(f"{reference} {each.message}" for each in error.details))
        except ConflictError as error:
            refusals.append(str(error))
            continue
        if not as_json:
            say(describe(changed[-1], job))
    if as_json:
        print_json(changed)
    if refusals:
        end(Status.REFUSED, *refusals)
