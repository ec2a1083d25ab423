"""Evicting gangs so that a more important or less served gang can start."""

from collections.abc import Sequence

from phalanx.core.reasons import WaitingForVictims
from phalanx.plan.decisions import Evict
from phalanx.plan.model import PendingGang
from phalanx.plan.placement.amounts import gathered_amounts
from phalanx.plan.planning_pass import PlanningPass
from phalanx.plan.preemption.candidates import VictimSet
from phalanx.plan.preemption.search_budget import SearchCursor
from phalanx.plan.preemption.victim_set import SearchSpace
from phalanx.plan.serving.starts import placement, start
from phalanx.plan.state.capacity import FreeCapacity


class Evictions:
    def __init__(self, work: PlanningPass) -> None:
        self._work = work
        #: The jobs that have had their turn in this round, and those that the budget left out.
        self._done = {*work.state.cursor.done}
        self._left_out: set[str] = set()
        #: Tasks that are stopping, since an earlier pass or in this one.
        self._stopping = [*work.state.running.stopping_tasks()]

    @property
    def cursor(self) -> SearchCursor:
        """Where the next pass goes on."""
        work = self._work
        if not self._left_out and not work.lineup.has_left_out:
            return SearchCursor()
        done = (self._done | work.lineup.turns) - self._left_out
        done = {job for job in done if job in work.pending.gangs}
        # If no turn has ended, the budget was not enough for the first search.
        is_stuck = bool(self._left_out) and done <= work.state.cursor.done
        return SearchCursor(frozenset(done), work.state.cursor.doubled + 1 if is_stuck else 0)

    def evict(self, gangs: Sequence[PendingGang]) -> bool:
        """Find victims for a gang or a group, and keep what they free for it; False if there are
        none. If releasing gathered places is enough, it starts now."""
        return self.is_worth_a_search(gangs) and self.search(gangs)

    def search(self, gangs: Sequence[PendingGang]) -> bool:
        """The same for gangs that are worth a search."""
        work, job = self._work, gangs[0].job
        if work.search.budget.is_spent:
            self._left_out.add(job)
            return False
        victims = work.search.find(gangs, work.capacity.soon, lambda: self._space(gangs[0]))
        if victims is None and work.search.budget.is_exceeded:
            self._left_out.add(job)
        else:
            self._done.add(job)
        if victims is None:
            return False
        if self._release_gathered(victims):
            return start(work, gangs)
        self._stop(victims, work.reservations.capacities_during(gangs[0].duration))
        return True

    def _space(self, gang: PendingGang) -> SearchSpace:
        """Where the gang may be placed once victims have stopped."""
        work = self._work
        later = work.reservations.capacities_during(gang.duration)
        work.capacity.look_ahead()
        allowed = work.reservations.allowed_nodes(gang.duration)
        return SearchSpace((work.capacity.soon, *later), allowed)

    def is_worth_a_search(self, gangs: Sequence[PendingGang]) -> bool:
        """Whether the gangs may evict others, have not had their turn, and might be entitled to
        victims."""
        work = self._work
        if gangs[0].job in self._done:
            return False
        return (
            any(work.search.might_find(gang.queue, gang.priority) for gang in gangs)
            and all(work.may_evict(gang) for gang in gangs)
            and work.search.is_entitled(gangs)
        )

    def _stop(self, victims: VictimSet, later: Sequence[FreeCapacity]) -> None:
        work = self._work
        planned = victims.victims()
        work.search.evict(victims)
        for unit in victims.units:
            work.exclude(unit.gang.job)
            for capacity in (work.capacity.soon, *later):
                unit.vacate(capacity)
            work.reservations.add_evicted(unit.gang.queue, [*unit.ends()])
            work.use(unit.gang, -unit.amounts)
        work.reservations.note_change()
        work.decisions.append(Evict(tuple(map(placement, victims.trials)), planned))
        tasks = tuple(task for unit in victims.units for task in unit.task_ids())
        self._stopping += tasks
        # Without victims of its own, the gang waits for tasks that are stopping already.
        tasks = tasks or tuple(sorted(self._stopping))
        for trial in victims.trials:
            work.capacity.add_kept(trial.gang, trial.occupants())
            work.search.exclude(trial.gang.job)
            work.use(trial.gang, trial.amounts())
            work.reasons.explicit[trial.gang.job] = WaitingForVictims(tasks)

    def _release_gathered(self, victims: VictimSet) -> bool:
        """Release gathered places among the victims; they are free at once. False if there are
        none."""
        work = self._work
        gathered = [unit for unit in victims.units if unit.gang.only_gathered]
        if not gathered:
            return False
        for unit in gathered:
            gang = work.pending.gangs[unit.gang.job]
            work.release_gathered(gang)
            work.search.exclude(gang.job)
            work.use(gang, -gathered_amounts(gang, work.table))
        victims.undo()
        work.reservations.note_change()
        return True
