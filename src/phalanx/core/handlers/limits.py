"""How many unfinished jobs and tasks a namespace can have. Crons count as jobs."""

from phalanx.core.changes import Changes
from phalanx.core.errors import LimitReached


def check_namespace_limits(tx: Changes, namespace: str, *, jobs: int, tasks: int = 0) -> None:
    """Raise LimitReached if the namespace cannot have so many more."""
    settings, load = tx.base.settings, tx.base.load_of(namespace)
    for present, more, limit, what, setting in (
        (load.jobs, jobs, settings.namespace_jobs, "unfinished jobs and crons", "namespace_jobs"),
        (
            load.tasks,
            tasks,
            settings.namespace_tasks,
            "tasks of unfinished jobs",
            "namespace_tasks",
        ),
    ):
        if limit is not None and more and present + more > limit:
            raise LimitReached(
                f"namespace {namespace} has {present} {what}, and {more} more would exceed the"
                f" limit of {limit} ({setting}); wait until jobs have ended, or cancel some"
            )
