"""Whom each gang is to start with, kept as gangs come and go.

Who names whom does not matter. Whoever has started is not waited for.
"""

from phalanx.core.gang import Gang


class GroupMembers:
    def __init__(self) -> None:
        #: By job: its name and whom it names, of those that name others or can be named.
        self._known: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._jobs: dict[str, str] = {}
        self._wanted_by: dict[str, set[str]] = {}
        #: Jobs that have started, or will not any more: nobody waits for them.
        self._past: set[str] = set()

    def put(self, job: str, gang: Gang | None) -> set[str]:
        """Take a gang over, or let it go; the jobs whose mates may be others than before."""
        if gang is None or (gang.job.spec.name is None and not gang.job.spec.group):
            return self._forget(job) if job in self._known else set()
        changed = self._forget(job) if job in self._known else set()
        name, group = gang.job.full_name, gang.job.spec.group
        self._known[job] = name, group
        self._jobs[name] = job
        for other in group:
            self._wanted_by.setdefault(other, set()).add(job)
        if gang.job.satisfied or gang.job.verdict is not None:
            self._past.add(job)
        return changed | self._near(job)

    def _forget(self, job: str) -> set[str]:
        near = self._near(job)
        name, group = self._known.pop(job)
        if self._jobs.get(name) == job:
            del self._jobs[name]
        for other in group:
            self._wanted_by[other].discard(job)
            if not self._wanted_by[other]:
                del self._wanted_by[other]
        self._past.discard(job)
        return near

    def _near(self, job: str) -> set[str]:
        name, group = self._known[job]
        named = {self._jobs[other] for other in group if other in self._jobs}
        return (named | self._wanted_by.get(name, set())) - {job}

    def of(self, job: str) -> tuple[str, ...]:
        """The names of those it starts with, also of those that nobody has submitted."""
        if job not in self._known or job in self._past:
            return ()
        name, group = self._known[job]
        wanting = (self._known[other][0] for other in sorted(self._wanted_by.get(name, ())))
        names = dict.fromkeys((*group, *wanting))
        return tuple(n for n in names if n != name and self._jobs.get(n) not in self._past)
