"""How much of the server one caller or one namespace can use: calls in progress, tasks per second.

Both are in the memory of the server that answers. How many jobs and tasks a namespace can have is
decided by the core, from the rows.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from phalanx.core.spec.job import JobSpec
from phalanx.engine.errors import Overloaded, TooManyRequests

#: A namespace that was quiet for this long can submit as much at once.
_BURST_S = 10
#: Buckets of namespaces that are kept, full ones included.
_MOST_BUCKETS = 1000


class CallLimit:
    """Calls of one kind that may be in progress, of all callers together and of one caller."""

    def __init__(self, what: str, most: int, most_of_one: int) -> None:
        self._what = what
        self._most = most
        self._most_of_one = most_of_one
        self._calls: Counter[str] = Counter()

    @contextmanager
    def call(self, caller: str) -> Iterator[None]:
        """Count a call. Raises TooManyRequests or Overloaded if there are too many."""
        if self._calls[caller] >= self._most_of_one:
            raise TooManyRequests(
                f"{self._calls[caller]} {self._what} of this caller are in progress; at most"
                f" {self._most_of_one} are at a time: try again in 1 s",
                retry_after_s=1,
            )
        if self._calls.total() >= self._most:
            raise Overloaded(
                f"{self._calls.total()} {self._what} are in progress; at most {self._most} are at a"
                " time: try again"
            )
        self._calls[caller] += 1
        try:
            yield
        finally:
            self._calls[caller] -= 1
            self._calls += Counter()  # drops callers without a call


class _Bucket(NamedTuple):
    tasks: float  #: how many can be submitted; negative after a large submission
    at_s: float


class SubmitRate:
    """The tasks that each namespace may submit: a number at once, and so many per second."""

    def __init__(self, tasks_per_s: int | None) -> None:
        """None sets no limit."""
        self._rate = tasks_per_s
        self._buckets: dict[str, _Bucket] = {}

    def take(self, specs: Iterable[JobSpec], now_s: float) -> None:
        """Count submissions, whether they will be accepted or not. Raises TooManyRequests."""
        if self._rate is None:
            return
        tasks: Counter[str] = Counter()
        for spec in specs:
            tasks[spec.namespace] += max(1, spec.size) * spec.elements
        buckets = {namespace: self._bucket(namespace, now_s) for namespace in tasks}
        for namespace, bucket in buckets.items():
            if bucket.tasks <= 0:
                self._refuse(namespace, bucket, self._rate)
        for namespace, bucket in buckets.items():
            self._buckets[namespace] = bucket._replace(tasks=bucket.tasks - tasks[namespace])

    def _bucket(self, namespace: str, now_s: float) -> _Bucket:
        """The bucket of a namespace as it is now."""
        rate = self._rate or 0
        if len(self._buckets) >= _MOST_BUCKETS:
            full = [
                name
                for name, bucket in self._buckets.items()
                if bucket.tasks + rate * (now_s - bucket.at_s) >= rate * _BURST_S
            ]
            for name in full:
                del self._buckets[name]
        last = self._buckets.get(namespace) or _Bucket(rate * _BURST_S, now_s)
        return _Bucket(min(rate * _BURST_S, last.tasks + rate * (now_s - last.at_s)), now_s)

    def _refuse(self, namespace: str, bucket: _Bucket, rate: int) -> None:
        wait_s = max(1, math.ceil(-bucket.tasks / rate))
        raise TooManyRequests(
            f"namespace {namespace} submits more than {rate} tasks per second (submit_rate), after"
            f" {rate * _BURST_S} at once; try again in {wait_s} s",
            retry_after_s=wait_s,
        )
