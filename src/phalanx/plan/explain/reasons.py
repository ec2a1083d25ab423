"""Why each gang waits, kept line by line: a hundred thousand gangs have a few hundred reasons."""

from collections import Counter
from collections.abc import Iterator, Mapping

from phalanx.core.reasons import Reason
from phalanx.plan.explain.shortage import Shortage
from phalanx.plan.pending import Bucket, PendingGangs, line_key


class PendingReasons(Mapping[str, Reason]):
    """As of one plan. Jobs that have come since are not in it."""

    def __init__(self, waiting: PendingGangs) -> None:
        self._waiting = waiting
        #: Of single gangs.
        self.explicit: dict[str, Reason] = {}
        self._of_line: dict[Bucket, tuple[int, Reason | None]] = {}
        self.shortage: Shortage | None = None

    def of_line(self, line: Bucket, position: int, reason: Reason | None) -> None:
        """All of the line from that position on wait for this; None: for what is short."""
        self._of_line[line] = (position, reason)

    def __getitem__(self, job: str) -> Reason:
        known = self.explicit.get(job)
        if known is not None:
            return known
        claim = self._waiting.gangs[job]
        if job in self._waiting.idle:
            return self._waiting.reason_of_idle(claim)
        line = self._waiting.buckets.get(line_key(claim))
        if line is None or line not in self._of_line:
            raise KeyError(job)
        return self._reason(line)

    def _reason(self, line: Bucket) -> Reason:
        reason = self._of_line[line][1]
        if reason is None:
            if self.shortage is None:
                raise AssertionError("bug: the plan is not finished")
            reason = self.shortage.of(line.first)
        return reason

    def __iter__(self) -> Iterator[str]:
        yield from self.explicit
        yield from (job for job in self._waiting.idle if job not in self.explicit)
        for line, (position, _) in self._of_line.items():
            for claim in line.after(position):
                if claim.job not in self.explicit:
                    yield claim.job

    def __len__(self) -> int:
        return sum(self.tally().values())

    def tally(self) -> Counter[str]:
        """How many wait for each kind of reason."""
        counts = Counter(type(reason).__name__ for reason in self.explicit.values())
        for job, claim in self._waiting.idle.items():
            if job not in self.explicit:
                counts[type(self._waiting.reason_of_idle(claim)).__name__] += 1
        for line, (position, _) in self._of_line.items():
            counts[type(self._reason(line)).__name__] += len(line.seats) - position
        return counts
