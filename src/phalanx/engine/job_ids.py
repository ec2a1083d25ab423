"""Unused ids for new jobs.

Ids are drawn at random and checked against the store, many at a time, so that most submissions need
no query. A store can gain a job only through this leader, so an id that was checked stays unused
until it is taken here. Ids of an earlier term are discarded.
"""

from collections.abc import Callable
from random import Random

from phalanx.core.ids import JOB_ID_BITS, job_id
from phalanx.engine.engine import Engine
from phalanx.store.protocol import Store

#: How many ids one query checks.
_SUPPLY = 500

#: Ids are names, not secrets; the generator is seeded by the operating system.
_RANDOM = Random()  # noqa: S311


def random_job_id() -> str:
    return job_id(_RANDOM.getrandbits(JOB_ID_BITS))


class JobIds:
    def __init__(
        self, engine: Engine, store: Store, draw: Callable[[], str] = random_job_id
    ) -> None:
        self._engine = engine
        self._store = store
        self._draw = draw
        self._term = 0
        self._unused: dict[str, None] = {}

    async def take(self, count: int) -> list[str]:
        """Ids that no stored job has, finished or not. Raises NotLeading.

        Two concurrent calls can return the same id if both drew it; the turn that uses an id
        notices that an unfinished job has it.
        """
        while True:
            term = self._engine.check_leading()
            if term != self._term:
                self._term, self._unused = term, {}
            if len(self._unused) >= count:
                return [self._unused.popitem()[0] for _ in range(count)]
            drawn = {self._draw(): None for _ in range(max(count, _SUPPLY))}
            existing = await self._store.job_summaries(drawn)
            if self._engine.check_leading() == term == self._term:
                self._unused |= {job: None for job in drawn if job not in existing}
