"""How the cluster was used in the last day: one sample per minute, in memory and in the store.

The leader takes the samples. They are stored by the hour, so that the next leader continues with
them. Nothing decides by them.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from phalanx.core.ledger import Tally
from phalanx.core.model import ENDED
from phalanx.core.node import GPU
from phalanx.core.records import JobEnded
from phalanx.core.time_units import HOUR, MINUTE, SECOND, Micros
from phalanx.engine.engine import Engine
from phalanx.engine.errors import NoAnswer
from phalanx.engine.snapshots import Snapshots
from phalanx.engine.turn import Turn
from phalanx.plan.state.planner_state import PlannerState
from phalanx.store.protocol import Note, Store, StoreError

DAY: Micros = 24 * HOUR
SAMPLE_EVERY: Micros = MINUTE
_KIND = "usage"
_KEPT = DAY // SAMPLE_EVERY + 60


class UsageCounts(msgspec.Struct, frozen=True):
    """The cluster at one time. GPUs are in thousandths."""

    gpus: int  #: of the workers that are not lost
    used_gpus: int
    running: int  #: gangs with a task that was placed
    tasks: int  #: their placed tasks
    pending: int
    oldest_pending_at: Micros | None  #: since when the oldest of them is pending


class UsageSample(msgspec.Struct, frozen=True, omit_defaults=True):
    at: Micros
    gpus: int
    used_gpus: int
    running: int
    pending: int
    #: Jobs that ended since the sample before, by phase.
    ended: dict[str, int] = {}
    #: Of the whole life of the cluster.
    evicted: Tally = Tally()
    failed: Tally = Tally()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[UsageSample, ...]).decode


def count_usage(state: PlannerState, now: Micros) -> UsageCounts:
    """A question to `Snapshots`."""
    nodes = [node for node in state.nodes.values() if node.worker.lost_at is None]
    running = state.running.by_job
    started = set(running)  # quicker to ask for each of many pending gangs
    waiting = [gang for gang in state.pending.gangs.values() if gang.job not in started]
    return UsageCounts(
        gpus=sum(node.worker.resources.get(GPU, 0) for node in nodes),
        used_gpus=sum(node.used.get(GPU, 0) for node in nodes),
        running=len(running),
        tasks=sum(len(occupancy.positions) for occupancy in running.values()),
        pending=len(waiting),
        oldest_pending_at=min((gang.created_at for gang in waiting), default=None),
    )


class UsageHistory:
    def __init__(self, engine: Engine, store: Store, snapshots: Snapshots) -> None:
        self._engine = engine
        self._store = store
        self._snapshots = snapshots
        self._samples: deque[UsageSample] = deque(maxlen=_KEPT)
        self._ended: Counter[str] = Counter()  #: since the last sample
        self._term: int | None = None  #: in which the samples were loaded

    def observe(self, turn: Turn) -> None:
        for record in turn.records():
            if isinstance(record, JobEnded):
                self._ended[record.phase] += 1

    def since(self, at: Micros) -> list[UsageSample]:
        return [sample for sample in self._samples if sample.at >= at]

    def ended_since(self, at: Micros) -> Counter[str]:
        """The jobs that ended, by phase."""
        ended = Counter[str](dict.fromkeys(ENDED, 0))
        for sample in self.since(at):
            ended.update(sample.ended)
        ended.update(self._ended)
        return ended

    async def load(self) -> None:
        """Read what earlier leaders have stored, once in each term. Raises StoreError."""
        term = self._engine.term
        if term == self._term:
            return
        notes = await self._store.notes(_KIND)
        known = {sample.at: sample for note in notes for sample in _decode(note.doc)}
        known |= {sample.at: sample for sample in self._samples}
        self._samples = deque((known[at] for at in sorted(known)), maxlen=_KEPT)
        self._term = term

    async def sample(self) -> None:
        """Add a sample, and store those of its hour. Raises StoreError or NoAnswer."""
        await self.load()
        counts = await self._snapshots.ask(count_usage, fresh=True)
        evicted, failed, now = await self._engine.do(_losses)
        sample = UsageSample(
            at=now,
            gpus=counts.gpus,
            used_gpus=counts.used_gpus,
            running=counts.running,
            pending=counts.pending,
            ended=dict(self._ended),
            evicted=evicted,
            failed=failed,
        )
        self._ended.clear()
        self._samples.append(sample)
        hour = now // HOUR
        doc = _encode([each for each in self._samples if each.at // HOUR == hour]).decode()
        await self._store.put_note(Note(_KIND, f"{hour:012}", now, doc))
        await self._store.remove_notes(_KIND, now - DAY - HOUR)

    async def keep_sampling(self) -> None:
        """Sample every minute, while this server leads."""
        while True:
            if self._engine.is_leading:
                with suppress(StoreError, NoAnswer):  # the next minute has a sample again
                    await self.sample()
            await asyncio.sleep(SAMPLE_EVERY / SECOND)


def _losses(turn: Turn) -> tuple[Tally, Tally, Micros]:
    accounts = turn.cluster.accounts.values()
    return _sum(a.eviction for a in accounts), _sum(a.failure for a in accounts), turn.now


def _sum(tallies: Iterable[Tally]) -> Tally:
    return sum(tallies, Tally())
