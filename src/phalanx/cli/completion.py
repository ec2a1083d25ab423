"""What a shell offers when Tab is pressed: the ids and names that a server knows just now.

Whatever goes wrong, nothing is offered and nothing is said.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from phalanx.client import Client

_QUICK_S = 1.0
_MOST = 200

Offer = tuple[str, str]


def _asking(ask: "Callable[[Client], Iterator[Offer]]") -> Callable[..., list[Offer]]:
    def complete(ctx: typer.Context, incomplete: str) -> list[Offer]:
        from phalanx.client import Client, PhalanxError  # noqa: PLC0415

        given: dict[str, Any] = ctx.params
        try:
            with Client(
                given.get("server"), given.get("token"), timeout_s=_QUICK_S, patience_s=0
            ) as client:
                # A name that was used again is offered once, for the job that it means now.
                offers = dict(reversed(list(ask(client))))
        except (PhalanxError, ValueError):
            return []
        return [offer for offer in reversed(offers.items()) if offer[0].startswith(incomplete)]

    return complete


def _jobs(client: "Client") -> Iterator[Offer]:
    for job in islice(client.jobs(page=_MOST), _MOST):
        yield job.id, f"{job.phase} {job.name if job.name != job.id else ''}".strip()
        if job.name != job.id:
            yield (
                (job.name if job.namespace == "default" else f"{job.namespace}/{job.name}"),
                job.id,
            )


def _workers(client: "Client") -> Iterator[Offer]:
    return ((worker.id, worker.status) for worker in client.workers())


def _queues(client: "Client") -> Iterator[Offer]:
    return ((queue.name, "stopped" if queue.stopped else "") for queue in client.queues())


def _crons(client: "Client") -> Iterator[Offer]:
    for cron in client.crons():
        is_default = cron.namespace == "default"
        yield cron.name if is_default else f"{cron.namespace}/{cron.name}", cron.cron


jobs, workers, queues = _asking(_jobs), _asking(_workers), _asking(_queues)
crons = _asking(_crons)

JOB_HELP = "Its id, the beginning of it, its name, or NAMESPACE/NAME."
Job = Annotated[
    str,
    typer.Argument(metavar="JOB", help=JOB_HELP, autocompletion=jobs, show_default=False),
]
Worker = Annotated[
    str,
    typer.Argument(metavar="WORKER", help="Its id.", autocompletion=workers, show_default=False),
]
Queue = Annotated[
    str,
    typer.Argument(metavar="QUEUE", help="Its name.", autocompletion=queues, show_default=False),
]
