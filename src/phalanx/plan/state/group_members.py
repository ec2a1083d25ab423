"""Which gangs start together, kept up to date as gangs come and go.

It does not matter which of two gangs names the other. A gang that has started is not waited for.
"""

from phalanx.core.gang import Gang
from phalanx.plan.state.forkable import ForkableDict


class GroupMembers:
    def __init__(self) -> None:
        #: By job: its name and the names in its group, for jobs that have either.
        self._known: ForkableDict[tuple[str, tuple[str, ...]]] = ForkableDict()
        #: By name: the job that has it, and the jobs that name it in their group.
        self._jobs: ForkableDict[str] = ForkableDict()
        self._named_by: ForkableDict[frozenset[str]] = ForkableDict()
        #: Jobs that have started or never will; no group waits for them.
        self._past: ForkableDict[None] = ForkableDict()

    def fork(self) -> "GroupMembers":
        fork = GroupMembers.__new__(GroupMembers)
        fork._known, fork._jobs = self._known.fork(), self._jobs.fork()  # noqa: SLF001
        fork._named_by, fork._past = self._named_by.fork(), self._past.fork()  # noqa: SLF001
        return fork

    def put(self, job: str, gang: Gang | None) -> set[str]:
        """Add, replace or remove a gang; returns the jobs whose group may have changed."""
        changed = self._forget(job) if job in self._known else set()
        if gang is None or (gang.job.spec.name is None and not gang.job.spec.group):
            return changed
        name, group = gang.job.full_name, gang.job.spec.group
        self._known[job] = name, group
        self._jobs[name] = job
        for other in group:
            self._named_by[other] = self._named_by.get(other, _NONE) | {job}
        if gang.job.satisfied or gang.job.verdict is not None:
            self._past[job] = None
        return changed | self._related(job)

    def _forget(self, job: str) -> set[str]:
        related = self._related(job)
        name, group = self._known.pop(job)
        if self._jobs.get(name) == job:
            del self._jobs[name]
        for other in group:
            self._named_by[other] -= {job}
            if not self._named_by[other]:
                del self._named_by[other]
        self._past.pop(job, None)
        return related

    def _related(self, job: str) -> set[str]:
        name, group = self._known[job]
        named = {self._jobs[other] for other in group if other in self._jobs}
        return {*named, *self._named_by.get(name, _NONE)} - {job}

    def of(self, job: str) -> tuple[str, ...]:
        """The names of the gangs that a job starts with, including those not submitted yet."""
        if job not in self._known or job in self._past:
            return ()
        name, group = self._known[job]
        naming = sorted(self._known[other][0] for other in self._named_by.get(name, _NONE))
        names = dict.fromkeys((*group, *naming))
        return tuple(n for n in names if n != name and self._jobs.get(n) not in self._past)


_NONE: frozenset[str] = frozenset()
