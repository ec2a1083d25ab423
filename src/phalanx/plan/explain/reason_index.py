"""Why each pending gang is pending, bucket by bucket: 100,000 gangs have a few hundred reasons."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from phalanx.core.reasons import AboveMinimum, Reason
from phalanx.plan.explain.shortage import Shortage
from phalanx.plan.pending import Bucket, PendingGangs


class _Segment(NamedTuple):
    """Gangs of a bucket from a position up to the next segment."""

    start: int
    reason: Reason | None = None  #: None: too little is free
    is_pending: bool = True


_SHORT = [_Segment(0)]


class PendingReasons(Mapping[str, Reason]):
    """The reasons of one plan, by job. They do not change when the planner state does.

    A running gang that has tasks above its minimum without a place can be asked for, but it is not
    among the pending gangs that are iterated and counted.
    """

    def __init__(self, pending: PendingGangs) -> None:
        """`pending` is a fork that is not changed any more."""
        self._pending = pending
        #: Of single gangs.
        self.explicit: dict[str, Reason] = {}
        #: Of buckets; too little is free for all gangs of the others.
        self._segments: dict[Bucket, list[_Segment]] = {}
        #: Of running gangs whose tasks above the minimum must not be placed.
        self.growth: dict[str, AboveMinimum] = {}
        self.shortage: Shortage | None = None

    def of_bucket(self, bucket: Bucket, position: int, reason: Reason | None) -> None:
        """Give all gangs from that position on the same reason; None: too little is free."""
        segments = self._segments.setdefault(bucket, [])
        if segments and segments[-1].start == position:
            segments.pop()
        segments.append(_Segment(position, reason))

    def mark_served(self, bucket: Bucket, position: int) -> None:
        """Give no reason to the gang at that position."""
        segments = self._segments.setdefault(bucket, [])
        if segments and segments[-1].start == position:
            segments.pop()
        if not segments or segments[-1].is_pending:
            segments.append(_Segment(position, is_pending=False))
        segments.append(_Segment(position + 1))

    def __getitem__(self, job: str) -> Reason:
        reason = self.explicit.get(job)
        if reason is not None:
            return reason
        gang = self._pending.gangs[job]
        reason = self._pending.own_reason(gang)
        if reason is not None:
            return reason
        if job in self._pending.growing:
            return self.growth.get(job) or self._finished_shortage().above_minimum(gang)
        bucket = self._pending.bucket_of(gang)
        if bucket is None:
            raise KeyError(job)
        segments, position = self._segments.get(bucket, _SHORT), bucket.position(gang)
        segment = segments[bisect_right(segments, position, key=lambda each: each.start) - 1]
        if not segment.is_pending:
            raise KeyError(job)
        return self._reason(bucket, segment)

    def _reason(self, bucket: Bucket, segment: _Segment) -> Reason:
        if segment.reason is not None:
            return segment.reason
        return self._finished_shortage().of(bucket.first)

    def _finished_shortage(self) -> Shortage:
        if self.shortage is None:
            raise AssertionError("bug: the plan is not finished")
        return self.shortage

    def _ranges(self) -> Iterator[tuple[Bucket, _Segment, int]]:
        """Segments of pending gangs, each with the position after its last gang."""
        for bucket in self._pending.buckets.values():
            segments = self._segments.get(bucket, _SHORT)
            ends = [*(segment.start for segment in segments[1:]), len(bucket.entries)]
            for segment, end in zip(segments, ends, strict=True):
                if segment.is_pending and segment.start < end:
                    yield bucket, segment, end

    def __iter__(self) -> Iterator[str]:
        yield from self.explicit
        for index in (self._pending.ineligible, self._pending.backing_off):
            yield from (job for job in index if job not in self.explicit)
        for bucket, segment, end in self._ranges():
            for _, _, job, _ in bucket.entries[segment.start : end]:
                if job not in self.explicit:
                    yield job

    def __len__(self) -> int:
        return sum(self.tally().values())

    def tally(self) -> Counter[str]:
        """Number of gangs by kind of reason."""
        pending = self._pending
        counts = Counter(type(reason).__name__ for reason in self.explicit.values())
        for index in (pending.ineligible, pending.backing_off):
            for job, gang in index.items():
                if job not in self.explicit:
                    counts[type(pending.own_reason(gang)).__name__] += 1
        explicit: dict[Bucket, list[int]] = {}
        for gang in (pending.gangs[job] for job in self.explicit):
            if (bucket := pending.bucket_of(gang)) is not None:
                explicit.setdefault(bucket, []).append(bucket.position(gang))
        for bucket, segment, end in self._ranges():
            apart = sum(segment.start <= position < end for position in explicit.get(bucket, ()))
            if end - segment.start > apart:
                kind = type(self._reason(bucket, segment)).__name__
                counts[kind] += end - segment.start - apart
        return counts
