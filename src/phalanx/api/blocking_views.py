"""The jobs that block a pending one, in words. Jobs that the caller may not see have no names."""

from phalanx.api.visibility import HIDDEN_JOB
from phalanx.core.reasons import QueueQuota, unit_in_words
from phalanx.core.text import listed
from phalanx.engine.forecast import JobForecast
from phalanx.identity.principal import Principal
from phalanx.plan.explain.blocking_jobs import BlockingJobs
from phalanx.wire.plan import BlockedView

#: How many jobs and workers are named.
_MOST_NAMES = 3


class BlockingInWords:
    def __init__(self, seen: JobForecast, blocking: BlockingJobs, principal: Principal) -> None:
        self._blocking = blocking
        jobs = [seen.state.gangs[job].job for job in blocking.jobs]
        self._names = [j.full_name for j in jobs if principal.may_see(j.spec.namespace)]
        self._is_one = len(jobs) == 1
        self._hidden = len(jobs) - len(self._names)

    @property
    def _jobs(self) -> str:
        hidden = HIDDEN_JOB if self._hidden == 1 else f"{self._hidden} jobs of other namespaces"
        parts = [listed(self._names, _MOST_NAMES), hidden if self._hidden else ""]
        return " and ".join(filter(None, parts))

    @property
    def view(self) -> BlockedView:
        run = "runs" if self._is_one else "run"
        message = f"no start can be reserved: {self._jobs} {run} without a time limit {self._where}"
        return BlockedView(message, tuple(self._names))

    @property
    def _where(self) -> str:
        nodes, bound = self._blocking.nodes, self._blocking.bound
        if bound is None:
            are = "is" if len(nodes) == 1 else "are"
            return f"on {listed(nodes, _MOST_NAMES)}, which {are} kept for this job"
        use = "uses" if self._is_one else "use"
        return f"and {use} the {unit_in_words(bound.resource)} {self._kind} of queue {bound.queue}"

    @property
    def _kind(self) -> str:
        return "quota" if isinstance(self._blocking.bound, QueueQuota) else "limit"

    @property
    def remedy(self) -> str:
        """What would let the job start. The caller cannot cancel jobs that it may not see."""
        them = "it" if self._is_one else "them"
        cancel = f", cancel {them} and submit {them} again with a time limit"
        more = "add workers" if self._blocking.bound is None else f"raise the {self._kind}"
        return f"wait for {self._jobs} to end{'' if self._hidden else cancel}, or {more}"
