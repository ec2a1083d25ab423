"""Gangs that stop waiting: a timeout of theirs has ended, or their gathered places block all."""

from phalanx.plan.decisions import TimeOut
from phalanx.plan.groups import group_of
from phalanx.plan.placement.gathered import deadlocked
from phalanx.plan.planning_pass import PlanningPass


def expire(work: PlanningPass) -> None:
    """Time out gangs of which a timeout has ended, each with its whole group."""
    for gang in work.pending.expired(work.now):
        for member in group_of(gang, work.pending).members:
            if member.job not in work.excluded:
                work.excluded.add(member.job)
                work.decisions.append(TimeOut(member.job, member.expires_at or 0))
                work.capacity.release_gathered(member)


def break_deadlocks(work: PlanningPass) -> None:
    """Release gathered places if no gathering gang could start even when all else has ended."""
    gangs = [g for g in work.pending.gathering.values() if g.job not in work.excluded]
    for gang in deadlocked(gangs, work.state.empty, work.shares) if gangs else ():
        work.release_gathered(gang)
