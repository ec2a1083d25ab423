"""Accounts of lost work: the losses of each job, and of each queue, which outlive its jobs.

Amounts are thousandths of a GPU times microseconds, money is in millionths. Both are fixed when the
work is lost: a later change of prices does not change them.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from phalanx.core.causes import Cause
from phalanx.core.time_units import HOUR, SECOND, Micros

T = TypeVar("T")

DAY: Micros = 24 * HOUR
#: For so many days the account of a queue has the evictions by other jobs of each day.
DAYS_KEPT = 7
#: A job lists its last evictions, a queue the jobs and evictors with the largest losses. The totals
#: include all of them.
EVICTIONS_KEPT = 20
NAMES_KEPT = 50


def gpu_seconds(gpu: int) -> float:
    return gpu / (1000 * SECOND)


class LostTo(StrEnum):
    EVICTION = "eviction"  #: the job was evicted for another job or by an operator
    FAILURE = "failure"  #: a task failed, a worker was lost, or a time limit was reached


class Loss(msgspec.Struct, frozen=True):
    """The work lost by one stop."""

    at: Micros
    to: LostTo
    cause: Cause
    gpu: int
    cost: int

    @property
    def by(self) -> str:
        """The evicting job (namespace/name), or the operator."""
        return self.cause.job or self.cause.by or "operator"


class Tally(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sum of several losses."""

    gpu: int = 0
    cost: int = 0
    count: int = 0

    def plus(self, loss: Loss) -> "Tally":
        return Tally(self.gpu + loss.gpu, self.cost + loss.cost, self.count + 1)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.gpu + other.gpu, self.cost + other.cost, self.count + other.count)


class JobLosses(msgspec.Struct, frozen=True, omit_defaults=True):
    """The losses of one job."""

    eviction: Tally = Tally()
    failure: Tally = Tally()
    evictions: tuple[Loss, ...] = ()  #: the most recent

    @property
    def total(self) -> Tally:
        return self.eviction + self.failure

    def plus(self, loss: Loss) -> "JobLosses":
        if loss.to is LostTo.FAILURE:
            return replace(self, failure=self.failure.plus(loss))
        evictions = (*self.evictions, loss)[-EVICTIONS_KEPT:]
        return replace(self, eviction=self.eviction.plus(loss), evictions=evictions)


class AccountEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The losses of one job of the queue, kept after the job itself is deleted."""

    name: str  #: namespace/name
    lost: Tally


class Account(msgspec.Struct, frozen=True, omit_defaults=True):
    """The losses of all jobs of one queue since the store was created."""

    queue: str
    eviction: Tally = Tally()
    failure: Tally = Tally()
    jobs: dict[str, AccountEntry] = {}  #: by id, those with the largest losses
    evictors: dict[str, Tally] = {}  #: those who caused the largest losses
    days: dict[int, int] = {}  #: evictions by other jobs, by day since 1970

    def plus(self, loss: Loss, job: str, entry: AccountEntry) -> "Account":
        jobs = _largest(self.jobs | {job: entry}, lambda entry: entry.lost)
        if loss.to is LostTo.FAILURE:
            return replace(self, failure=self.failure.plus(loss), jobs=jobs)
        evictors = self.evictors | {loss.by: self.evictors.get(loss.by, Tally()).plus(loss)}
        today = loss.at // DAY
        days = self.days | {today: self.days.get(today, 0) + (loss.cause.job is not None)}
        return replace(
            self,
            eviction=self.eviction.plus(loss),
            jobs=jobs,
            evictors=_largest(evictors, lambda tally: tally),
            days={day: count for day, count in days.items() if day > today - DAYS_KEPT},
        )

    def preemptions_since(self, day: int) -> int:
        """How many times a job of the queue was evicted for another job."""
        return sum(count for each, count in self.days.items() if each >= day)


def _largest(named: dict[str, T], tally_of: Callable[[T], Tally]) -> dict[str, T]:
    """The same entries without the smallest, once there are too many."""
    if len(named) <= NAMES_KEPT:
        return named

    def weight(name: str) -> tuple[int, int, str]:
        tally = tally_of(named[name])
        return tally.cost, tally.gpu, name

    least = min(named, key=weight)
    return {name: value for name, value in named.items() if name != least}
