"""What each queue uses, its fair share, and how many of its jobs run and are pending.

The numbers are computed beside the event loop, on a fork of the planner state. However many callers
ask, computing them takes a small part of the time.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping

from phalanx.core.model import Phase
from phalanx.core.spec.quantities import native
from phalanx.engine.engine import Engine
from phalanx.engine.planner_loop import ForkedState
from phalanx.plan.cycle import settled_shares
from phalanx.plan.state.nodes import SLOTS, WHOLE, Floats
from phalanx.wire.workers import QueueUsage

#: Queues share these in numbers that people do not look for.
_HIDDEN = (SLOTS, WHOLE)
#: Numbers are used for this many times as long as it took to compute them.
_REUSED_TIMES = 20


class QueueUsages:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = asyncio.Lock()
        self._usages: dict[str, QueueUsage] = {}
        self._until = float("-inf")

    async def by_queue(self) -> Mapping[str, QueueUsage]:
        """The usage of every queue, now or a moment ago. Raises NotLeading."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            if loop.time() >= self._until:
                began = loop.time()
                fork = await self._engine.fork_planner_state()
                self._usages = await asyncio.to_thread(_usages, fork)
                self._until = loop.time() + _REUSED_TIMES * (loop.time() - began)
            return self._usages


def _usages(fork: ForkedState) -> dict[str, QueueUsage]:
    state = fork.state
    state.update(fork.delta)
    shares = settled_shares(state.at(fork.now))
    resources = list(shares.table.rows)
    running: Counter[str] = Counter()
    pending: Counter[str] = Counter()
    for gang in state.gangs.values():
        if gang.job.array is None:  # an array is one job
            counter = pending if gang.job.phase is Phase.PENDING else running
            counter[gang.job.spec.queue] += 1

    def amounts(row: Floats) -> dict[str, object]:
        named = zip(resources, row.tolist(), strict=True)
        return native({r: int(a) for r, a in named if a >= 1 and r not in _HIDDEN})

    below: dict[str, list[str]] = {name: [] for name in shares.branches}
    for name, branch in shares.branches.items():
        for above in branch.path():
            if above is not shares.root:
                below[above.queue.name].append(name)
    return {
        name: QueueUsage(
            used=amounts(branch.used),
            fair_share=amounts(branch.deserved),
            borrowed=amounts((branch.used - branch.deserved).clip(min=0)),
            running=sum(running[each] for each in below[name]),
            pending=sum(pending[each] for each in below[name]),
        )
        for name, branch in shares.branches.items()
    }
