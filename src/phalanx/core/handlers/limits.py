"""How many unfinished jobs, tasks and bytes a namespace can have. Crons count as jobs."""

from phalanx.core.changes import Changes
from phalanx.core.errors import LimitReached
from phalanx.core.interning import encoded_bytes
from phalanx.core.spec.job import JobSpec


def check_namespace_limits(
    tx: Changes, spec: JobSpec, *, jobs: int, tasks: int, replaced: JobSpec | None = None
) -> None:
    """Raise LimitReached if the namespace of a job cannot have so many more, of this size.

    The size of a specification that it replaces is free again.
    """
    settings, load = tx.base.settings, tx.base.load_of(spec.namespace)
    size = 0
    if settings.namespace_bytes is not None:
        size = max(0, encoded_bytes(spec) - (0 if replaced is None else encoded_bytes(replaced)))
    for present, more, limit, what, setting in (
        (load.jobs, jobs, settings.namespace_jobs, "unfinished jobs and crons", "namespace_jobs"),
        (load.tasks, tasks, settings.namespace_tasks, "tasks of its jobs", "namespace_tasks"),
        (load.size_bytes, size, settings.namespace_bytes, "bytes of jobs", "namespace_size"),
    ):
        if limit is not None and more and present + more > limit:
            raise LimitReached(
                f"namespace {spec.namespace} has {present} {what}, and {more} more would exceed the"
                f" limit of {limit} ({setting}); wait until jobs have ended, or cancel some"
            )
