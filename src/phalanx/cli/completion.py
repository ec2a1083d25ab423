"""Shell completion: the ids and names that the server has at the moment.

Completion never fails and never prints an error: without an answer it offers nothing.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from phalanx.client import Client

_TIMEOUT_S = 1.0
_MAX_JOBS = 200

#: A word and its description.
Candidate = tuple[str, str]


def _completer(
    candidates: "Callable[[Client], Iterator[Candidate]]",
) -> Callable[..., list[Candidate]]:
    def complete(ctx: typer.Context, incomplete: str) -> list[Candidate]:
        from phalanx.client import Client, PhalanxError  # noqa: PLC0415

        given: dict[str, Any] = ctx.params
        try:
            with Client(
                given.get("server"), given.get("token"), timeout_s=_TIMEOUT_S, patience_s=0
            ) as client:
                # A name that was reused is offered once, for the first job listed.
                offered = dict(reversed(list(candidates(client))))
        except (PhalanxError, ValueError):
            return []
        return [each for each in reversed(offered.items()) if each[0].startswith(incomplete)]

    return complete


def _jobs(client: "Client", *, finished: bool | None = None) -> Iterator[Candidate]:
    for job in islice(client.jobs(finished=finished, page=_MAX_JOBS), _MAX_JOBS):
        yield job.id, f"{job.phase} {job.name if job.name != job.id else ''}".strip()
        if job.name != job.id:
            yield (
                (job.name if job.namespace == "default" else f"{job.namespace}/{job.name}"),
                job.id,
            )


def _workers(client: "Client") -> Iterator[Candidate]:
    return ((worker.id, worker.status) for worker in client.workers())


def _queues(client: "Client") -> Iterator[Candidate]:
    return ((queue.name, "stopped" if queue.stopped else "") for queue in client.queues())


def _crons(client: "Client") -> Iterator[Candidate]:
    for cron in client.crons():
        is_default = cron.namespace == "default"
        yield cron.name if is_default else f"{cron.namespace}/{cron.name}", cron.cron


jobs, workers = _completer(_jobs), _completer(_workers)
unfinished_jobs = _completer(partial(_jobs, finished=False))
finished_jobs = _completer(partial(_jobs, finished=True))
queues, crons = _completer(_queues), _completer(_crons)

JOB_HELP = "Job id, the beginning of one, a job name, or NAMESPACE/NAME."
Job = Annotated[
    str,
    typer.Argument(metavar="JOB", help=JOB_HELP, autocompletion=jobs, show_default=False),
]
Worker = Annotated[
    str,
    typer.Argument(metavar="WORKER", help="Worker id.", autocompletion=workers, show_default=False),
]
Queue = Annotated[
    str,
    typer.Argument(metavar="QUEUE", help="Queue name.", autocompletion=queues, show_default=False),
]
