"""`phalanx tasks`: the processes of a job, where they are and how they ended."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phalanx.cli import formatting
from phalanx.cli.completion import Job
from phalanx.cli.connection import with_client
from phalanx.cli.output import Json, print_json, print_table

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.jobs import TaskView


@with_client
def tasks(client: "Client", *, called: Job, as_json: Json = False) -> None:
    """List the tasks of a job, in order."""
    found = client.tasks(client.find(called))
    if as_json:
        print_json(found)
        return
    print_tasks(found)


def print_tasks(tasks: "Sequence[TaskView]") -> None:
    now = formatting.now()
    rows = [
        (
            str(task.gang_index),
            task.role,
            formatting.state(task.status),
            task.worker_id or "-",
            ",".join(map(str, task.devices)) or "-",
            str(task.attempts),
            formatting.lived(task, now),
            formatting.outcome(task),
        )
        for task in tasks
    ]
    heads = ["#TASK", "ROLE", "STATE", "WORKER", "GPUS", "#ATTEMPTS", "#FOR", "EXIT"]
    print_table(heads, rows)
