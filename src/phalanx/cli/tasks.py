"""`phalanx tasks`: the tasks of a job, their workers and how they ended."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phalanx.cli import formatting
from phalanx.cli.completion import Job
from phalanx.cli.connection import with_client
from phalanx.cli.elements import refuse_array
from phalanx.cli.output import Json, Narrow, note, print_json, print_table

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.jobs import TaskView


@with_client
def tasks(client: "Client", *, reference: Job, as_json: Json = False) -> None:
    """List the tasks of a job: state, worker, GPUs, attempt and exit."""
    job = client.find(reference)
    listed = client.tasks(job)
    if not listed:
        refuse_array(client, job)
    if as_json:
        print_json(listed)
        return
    if not listed:
        note("no tasks; the element has never run")
        return
    print_tasks(listed)


def print_tasks(tasks: "Sequence[TaskView]") -> None:
    now = formatting.now()
    rows = [
        (
            str(task.task),
            task.role,
            formatting.styled(task.state),
            task.worker or "-",
            ",".join(map(str, task.devices)) or "-",
            str(task.attempt or "-"),
            formatting.runtime(task, now),
            formatting.exit_text(task),
        )
        for task in tasks
    ]
    headings = ["#TASK", "ROLE", "STATE", "WORKER", "GPUS", "#ATTEMPT", "#RUNTIME", "EXIT"]
    print_table(headings, rows, Narrow(cut=("ROLE", "EXIT"), drop=("GPUS", "ATTEMPT")))
