"""Jobs that start together in the planner state: a job that is named is a member of the group."""

import pytest
from msgspec.structs import replace
from tests.driver import Driver, spec

from phalanx.core.events import CancelRequested, MembersJoined
from phalanx.core.model import GangMembers
from phalanx.core.reasons import Reason, WaitingForGroup
from phalanx.core.spec.job import JobSpec
from phalanx.plan.cycle import plan
from phalanx.plan.decisions import Plan, Reserve
from phalanx.plan.state.delta import PlannerDelta
from phalanx.plan.state.planner_state import PlannerState


def member(name: str, *group: str, size: int = 1) -> JobSpec:
    names = [f"default/{other}" for other in group]
    return spec(size, role={"resources": {"gpu": 1}}, name=name, group=names)


class Watched:
    """A cluster of four GPUs, and a planner state that hears of each change alone."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.driver.fleet("a", "b", resources={"gpu": 2000})
        self.state = PlannerState.of(self.driver.cluster)

    def submit(self, *specs: JobSpec) -> list[str]:
        return [self.see(self.driver.submit(each)) for each in specs]

    def see(self, job: str) -> str:
        cluster = self.driver.cluster
        self.state.update(PlannerDelta({job: cluster.gangs.get(job)}, dict(cluster.nodes)))
        return job

    def plan(self) -> Plan:
        made = plan(self.state, self.driver.now)
        anew = plan(PlannerState.of(self.driver.cluster), self.driver.now)
        assert (made.decisions, dict(made.reasons)) == (anew.decisions, dict(anew.reasons))
        return made

    def starts(self) -> list[set[str]]:
        """The jobs that start, group by group."""
        reserves = (each for each in self.plan().decisions if isinstance(each, Reserve))
        return [{placement.job for placement in each.placements} for each in reserves]

    def reason(self, job: str) -> Reason | None:
        return self.plan().reasons.get(job)


def test_a_job_that_is_only_named_starts_with_the_one_that_names_it() -> None:
    watched = Watched()
    one, two = watched.submit(member("one", "two"), member("two"))
    assert watched.starts() == [{one, two}]


def test_a_job_that_was_submitted_first_waits_for_its_group() -> None:
    watched = Watched()
    two, one = watched.submit(member("two"), member("one", "two", size=4))
    assert watched.starts() == []
    assert watched.reason(two) == watched.reason(one)


def test_a_job_starts_alone_once_the_job_that_named_it_is_gone() -> None:
    watched = Watched()
    two, one = watched.submit(member("two"), member("one", "two", "three"))
    assert watched.reason(two) == WaitingForGroup(("default/three",))
    watched.state.update(PlannerDelta({one: None}))
    started = plan(watched.state, watched.driver.now).reserved()
    assert [placement.job for placement in started] == [two]


def test_a_job_that_names_a_running_job_starts_by_itself() -> None:
    watched = Watched()
    [old] = watched.submit(member("old"))
    watched.driver.run(old, "a")
    watched.see(old)
    [late] = watched.submit(member("late", "old"))
    assert watched.starts() == [{late}]


def test_a_member_that_has_started_is_not_missing() -> None:
    watched = Watched()
    [late] = watched.submit(member("late", "old"))
    assert watched.reason(late) == WaitingForGroup(("default/old",))
    driver = watched.driver
    old = driver.submit(member("old"))
    driver.run(old, "a")
    watched.see(old)
    assert watched.starts() == [{late}]


def test_a_group_that_has_started_restarts_one_by_one() -> None:
    watched = Watched()
    one, two = watched.submit(member("one", "two"), member("two"))
    watched.driver.run(one, "a")
    watched.driver.run(two, "b")
    watched.driver.fail(one, 0)
    watched.see(one)
    watched.see(two)
    watched.driver.advance(20)
    watched.see(one)
    assert watched.starts() == [{one}]


def test_a_group_that_ended_before_its_start_leaves_nothing_behind() -> None:
    watched = Watched()
    one, two = watched.submit(member("one", "two"), member("two"))
    watched.driver.apply(CancelRequested(one))
    watched.see(one)
    watched.see(two)
    [again] = watched.submit(member("two"))
    assert watched.starts() == [{again}]


@pytest.mark.parametrize("has_pods", [True, False])
def test_a_member_with_missing_tasks_is_waited_for(has_pods: bool) -> None:
    watched = Watched()
    [one] = watched.submit(member("one", "two"))
    two = member("two")
    part = two if has_pods else replace(two, roles=(), min_available=0)
    job = watched.see(watched.driver.submit(part, members=GangMembers(needed=2)))
    assert watched.starts() == []
    assert watched.reason(one) == WaitingForGroup(("default/two",))
    rest = spec(2, role={"resources": {"gpu": 1}}, name="two")
    watched.driver.apply(MembersJoined(job, rest, GangMembers(needed=2, names=("two-1",))))
    watched.see(job)
    assert watched.starts() == [{one, job}]
