"""What stops have cost: a job's own losses, and the account of each queue, which outlives its jobs.

Amounts are thousandths of a GPU times microseconds; money is in millionths. Both are fixed when
the work is lost: a price that changes later changes nothing that was written.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from phalanx.core.spec.job import HOUR, SECOND, Micros

T = TypeVar("T")

DAY: Micros = 24 * HOUR
#: A queue remembers how many evictions it had on each of the last days.
DAYS_KEPT = 7
#: A job names its last evictions, a queue those that cost it most. The totals are exact anyway.
EVICTIONS_KEPT = 20
NAMES_KEPT = 50


def gpu_seconds(gpu: int) -> float:
    return gpu / (1000 * SECOND)


class LostTo(StrEnum):
    EVICTION = "eviction"  #: a job or an operator wanted its place
    FAILURE = "failure"  #: a task, a worker or a time limit


class Loss(msgspec.Struct, frozen=True):
    """One stop that cost work."""

    at: Micros
    to: LostTo
    by: str  #: the job (namespace/name), the operator, or what failed
    gpu: int
    cost: int


class Tally(msgspec.Struct, frozen=True, omit_defaults=True):
    gpu: int = 0
    cost: int = 0
    count: int = 0

    def plus(self, loss: Loss) -> "Tally":
        return Tally(self.gpu + loss.gpu, self.cost + loss.cost, self.count + 1)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.gpu + other.gpu, self.cost + other.cost, self.count + other.count)


class Lost(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one job has lost."""

    eviction: Tally = Tally()
    failure: Tally = Tally()
    evictions: tuple[Loss, ...] = ()  #: the last ones

    @property
    def total(self) -> Tally:
        return self.eviction + self.failure

    def plus(self, loss: Loss) -> "Lost":
        if loss.to is LostTo.FAILURE:
            return replace(self, failure=self.failure.plus(loss))
        evictions = (*self.evictions, loss)[-EVICTIONS_KEPT:]
        return replace(self, eviction=self.eviction.plus(loss), evictions=evictions)


class AccountEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job of the queue has lost, for after it is forgotten."""

    name: str  #: namespace/name
    lost: Tally


class Account(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the jobs of one queue have lost, since the store was made."""

    queue: str
    eviction: Tally = Tally()
    failure: Tally = Tally()
    jobs: dict[str, AccountEntry] = {}  #: by id, those that lost most
    evictors: dict[str, Tally] = {}  #: those that cost most
    days: dict[int, int] = {}  #: evictions by day since 1970

    def plus(self, loss: Loss, job: str, line: AccountEntry) -> "Account":
        jobs = _largest(self.jobs | {job: line}, lambda line: line.lost)
        if loss.to is LostTo.FAILURE:
            return replace(self, failure=self.failure.plus(loss), jobs=jobs)
        evictors = self.evictors | {loss.by: self.evictors.get(loss.by, Tally()).plus(loss)}
        today = loss.at // DAY
        days = self.days | {today: self.days.get(today, 0) + 1}
        return replace(
            self,
            eviction=self.eviction.plus(loss),
            jobs=jobs,
            evictors=_largest(evictors, lambda tally: tally),
            days={day: count for day, count in days.items() if day > today - DAYS_KEPT},
        )

    def evictions_since(self, day: int) -> int:
        return sum(count for each, count in self.days.items() if each >= day)


def _largest(named: dict[str, T], tally_of: Callable[[T], Tally]) -> dict[str, T]:
    """All but the one that has lost least, once there are too many."""
    if len(named) <= NAMES_KEPT:
        return named

    def weight(name: str) -> tuple[int, int, str]:
        tally = tally_of(named[name])
        return tally.cost, tally.gpu, name

    least = min(named, key=weight)
    return {name: value for name, value in named.items() if name != least}
