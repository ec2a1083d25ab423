"""Questions about the whole cluster, answered on a fork of the planner state beside the event loop.

A fork is used for a second and each question is computed once on it, so that many readers cost as
much as one.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from phalanx.core.time_units import Micros
from phalanx.engine.engine import Engine
from phalanx.engine.planner_loop import ForkedState
from phalanx.plan.state.planner_state import PlannerState

T = TypeVar("T")

_FRESH_S = 1.0


class Snapshots:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = asyncio.Lock()
        self._fork: ForkedState | None = None
        self._taken_at = float("-inf")
        self._answers: dict[object, Any] = {}

    def forget(self) -> None:
        """Answer the next question with a new fork."""
        self._taken_at = float("-inf")

    async def ask(self, question: Callable[[PlannerState, Micros], T], *, fresh: bool = False) -> T:
        """The answer to a question that depends on the state and the time only, at most a second
        old, or, with `fresh`, about everything that is durable by now. Raises NotLeading."""
        async with self._lock:
            self._engine.check_leading()
            now_s = asyncio.get_running_loop().time()
            if fresh:
                self.forget()
            if self._fork is None or now_s - self._taken_at > _FRESH_S:
                fork = await self._engine.fork_planner_state()
                await asyncio.to_thread(fork.state.update, fork.delta)
                self._fork, self._taken_at, self._answers = fork, now_s, {}
            if question not in self._answers:
                self._answers[question] = await asyncio.to_thread(
                    question, self._fork.state, self._fork.now
                )
            answer: T = self._answers[question]
            return answer
