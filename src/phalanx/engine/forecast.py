"""Forecasts: what the next plan means for one job, and what would let the job start.

A forecast is made beside the event loop, on a fork of the planner state. One is made at a time, so
that forecasts take at most a share of the interpreter from commits and plans.
"""

import asyncio
from typing import NamedTuple

from phalanx.core.gang import Gang
from phalanx.core.settings import CoreSettings
from phalanx.core.time_units import Micros
from phalanx.engine.admission import CallLimit
from phalanx.engine.engine import Engine
from phalanx.engine.planner_loop import ForkedState
from phalanx.plan.cycle import plan
from phalanx.plan.explain.blocking_jobs import BlockingJobs, blocking_jobs
from phalanx.plan.explain.due_times import DueTimes, due_times
from phalanx.plan.explain.share_rules import ShareRule, share_rule
from phalanx.plan.explain.whatif import (
    Alternative,
    Forecast,
    alternatives,
    forecast,
)
from phalanx.plan.state.planner_state import PlannerState

#: Forecasts that may wait, of all callers together and of one caller.
_MOST_FORECASTS = 64
_MOST_OF_ONE = 8


class JobForecast(NamedTuple):
    state: PlannerState  #: what was planned with
    now: Micros
    settings: CoreSettings
    forecast: Forecast
    #: For a job that neither starts nor gathers places.
    rule: ShareRule | None = None
    due: DueTimes | None = None
    blocking: BlockingJobs | None = None
    alternatives: tuple[Alternative, ...] = ()


class Forecasts:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = asyncio.Lock()
        self._calls = CallLimit("forecasts", _MOST_FORECASTS, _MOST_OF_ONE)

    async def of(self, job: str, caller: str, gang: Gang | None = None) -> JobForecast | None:
        """The forecast of an unfinished job, or of one that is not submitted and given as a gang.
        None if the job has ended. Raises NotLeading, TooManyRequests or Overloaded."""
        with self._calls.call(caller):
            return await self._of(job, gang)

    async def _of(self, job: str, gang: Gang | None) -> JobForecast | None:
        async with self._lock:
            fork = await self._engine.fork_planner_state()
            if gang is not None:
                fork.delta.gangs[job] = gang
            return await asyncio.to_thread(_forecast, fork, job, self._engine.settings.core)


def _forecast(fork: ForkedState, job: str, settings: CoreSettings) -> JobForecast | None:
    state, now = fork.state, fork.now
    state.update(fork.delta)
    gang = state.gangs.get(job)
    if gang is None:
        return None
    found = forecast(plan(state, now), job)
    if found.places:
        return JobForecast(state, now, settings, found)
    stop = settings.stop_timeout(gang.job.spec.grace)
    return JobForecast(
        state,
        now,
        settings,
        found,
        share_rule(state.at(now), job),
        due_times(state.at(now), job, found.reason),
        blocking_jobs(state.at(now), job, found),
        tuple(alternatives(state, now, job, found.reason, stop)),
    )
