"""Jobs coming in from outside: their ids, keys that were used before, dependencies that have ended.

What the core cannot know, because it is only in the store, is looked up before the turn and looked
up again if it has changed by then. Submissions with the same key are taken one after the other.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import NamedTuple

from phalanx.core import ids
from phalanx.core.errors import CoreError
from phalanx.core.events import CronSet, Submitted
from phalanx.core.gang import Gang
from phalanx.core.model import Cron, Job, Phase
from phalanx.core.scheduling import cron_key
from phalanx.core.spec import JobSpec, Micros
from phalanx.core.submitting import Duplicate
from phalanx.core.warnings import AnyWarning
from phalanx.engine.advice import Advice
from phalanx.engine.engine import Engine
from phalanx.engine.turn import Turn
from phalanx.store.protocol import Store


class Submission(NamedTuple):
    spec: JobSpec
    owner: str = ""
    key: str | None = None  #: asking again with the same one gives the first job


class Taken(NamedTuple):
    """A submission that was accepted, now or earlier."""

    job: Job
    is_new: bool
    warnings: tuple[AnyWarning, ...] = ()


class Scheduled(NamedTuple):
    """A submission with a schedule: a cron was set."""

    cron: Cron
    is_new: bool
    warnings: tuple[AnyWarning, ...] = ()


class _Again(Exception):  # noqa: N818
    """A dependency has ended since it was looked up."""


Outcome = Taken | Scheduled | CoreError

#: Ids are names and no secrets; the generator is seeded by the system.
_NOISE = Random()  # noqa: S311


def new_job(at: Micros) -> str:
    return ids.job_id(at, _NOISE.getrandbits(ids.NOISE_BITS))


class Submissions:
    def __init__(
        self,
        engine: Engine,
        store: Store,
        new_job: Callable[[Micros], str] = new_job,
        advice: Advice | None = None,
    ) -> None:
        """Without advice nobody is warned."""
        self._advice = advice
        self._engine = engine
        self._store = store
        self._new_job = new_job
        #: (namespace, key) → its lock and how many want it.
        self._locks: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}

    async def submit(self, submissions: Sequence[Submission]) -> list[Outcome]:
        """Each is accepted or refused by itself; all in one turn, and so in one commit."""
        keys = {(s.spec.namespace, s.key) for s in submissions if s.key is not None}
        async with self._alone(keys):
            known = {key: await self._store.job_by_key(*key) for key in sorted(keys)}
            while True:
                take = partial(self._take, submissions, known, await self._ended(submissions))
                try:
                    return await self._engine.do(take)
                except _Again:
                    continue

    async def _ended(self, submissions: Sequence[Submission]) -> dict[str, Phase | None]:
        """How each job that is waited for has ended; None for one that has not. Unknown ones are
        absent."""
        found = {}
        for job in sorted({job for s in submissions for job in s.spec.after}):
            row = await self._store.job(job)
            if row is not None:
                found[job] = None if row[0].is_live else row[0].phase
        return found

    def _take(
        self,
        submissions: Sequence[Submission],
        known: dict[tuple[str, str], Job | None],
        looked_up: dict[str, Phase | None],
        turn: Turn,
    ) -> list[Outcome]:
        live = turn.cluster.gangs
        if any(phase is None and job not in live for job, phase in looked_up.items()):
            raise _Again
        ended = {job: phase for job, phase in looked_up.items() if phase is not None}
        taken: list[Outcome] = []
        for submission in submissions:
            if submission.spec.schedule is not None:
                taken.append(self._schedule(turn, submission))
                continue
            first = known.get((submission.spec.namespace, submission.key or ""))
            if first is not None:
                gang = live.get(first.id)
                taken.append(self._taken(turn, first if gang is None else gang.job, is_new=False))
                continue
            try:
                job = self._submit(turn, submission, ended).job
                taken.append(self._taken(turn, job, is_new=True))
            except Duplicate as error:
                taken.append(self._taken(turn, live[error.job].job, is_new=False))
            except CoreError as error:
                taken.append(error)
        return taken

    def _taken(self, turn: Turn, job: Job, *, is_new: bool) -> Taken:
        warned = () if self._advice is None else self._advice.on(turn, job.spec)
        return Taken(job, is_new, warned)

    def _schedule(self, turn: Turn, submission: Submission) -> Scheduled | CoreError:
        """Setting the same cron again changes nothing, so it needs no key."""
        spec = submission.spec
        key = cron_key(spec.namespace, spec.name or "")
        is_new = key not in turn.cluster.crons
        try:
            turn.apply(CronSet(spec, submission.owner))
        except CoreError as error:
            return error
        warned = () if self._advice is None else self._advice.on(turn, spec)
        return Scheduled(turn.cluster.crons[key], is_new, warned)

    def _submit(self, turn: Turn, submission: Submission, ended: dict[str, Phase]) -> Gang:
        job = self._new_job(turn.now)
        mine = {name: ended[name] for name in submission.spec.after if name in ended}
        event = Submitted(job, submission.spec, submission.owner, submission.key, mine)
        return turn.apply(event).gangs[job]

    @asynccontextmanager
    async def _alone(self, keys: set[tuple[str, str]]) -> AsyncIterator[None]:
        held: list[tuple[str, str]] = []
        for key in keys:
            lock, users = self._locks.get(key, (asyncio.Lock(), 0))
            self._locks[key] = (lock, users + 1)
        try:
            for key in sorted(keys):  # in one order, so that two batches never wait for each other
                await self._locks[key][0].acquire()
                held.append(key)
            yield
        finally:
            for key in held:
                self._locks[key][0].release()
            for key in keys:
                lock, users = self._locks.pop(key)
                if users > 1:
                    self._locks[key] = (lock, users - 1)
