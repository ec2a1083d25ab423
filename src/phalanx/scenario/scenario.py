"""A scenario: a cluster written by hand, ready to be planned."""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from phalanx.core.model import Queue
from phalanx.core.node import Node
from phalanx.core.queues import DEFAULT
from phalanx.core.spec.job import Resources
from phalanx.plan.fairshare.unused_shares import UnusedShares
from phalanx.plan.model import PendingGang, PlannerPolicy, RunningGang
from phalanx.plan.state.from_cluster import node_spec
from phalanx.plan.state.planner_state import PlannerState
from phalanx.scenario.checks import check_names
from phalanx.scenario.file_format import ScenarioFile, TaskEntry, read_scenario_file
from phalanx.scenario.gangs import ScenarioGang, gangs_of
from phalanx.scenario.nodes import empty_node, occupy
from phalanx.scenario.planner_input import pending_gang, running_gang
from phalanx.scenario.times import NOW


class Scenario(msgspec.Struct, frozen=True):
    """A cluster, the policy, and the expected outcome."""

    name: str
    policy: PlannerPolicy
    nodes: tuple[Node, ...]
    queues: tuple[Queue, ...]
    unused_shares: Mapping[str, Resources]
    pending: tuple[PendingGang, ...]
    running: tuple[RunningGang, ...]
    #: By name: the gangs of the file, to describe an outcome by the names of tasks.
    gangs: Mapping[str, ScenarioGang]
    expect: Any  #: as written in the file; None if nothing is expected

    def task(self, gang: str, index: int) -> TaskEntry:
        """The entry of a task in the file."""
        tasks = (*self.gangs[gang].placed, *self.gangs[gang].pending)
        return next(task.entry for task in tasks if task.number == index)

    def state(self) -> PlannerState:
        """The planner's state, without a plan."""
        state = PlannerState(self.policy)
        state.set_queues({queue.name: queue for queue in self.queues})
        for node in self.nodes:
            state.put_node(node.worker.id, node_spec(node))
        state.unused_shares = UnusedShares(NOW, self.unused_shares)
        for running in self.running:
            state.put_running(running)
        for pending in self.pending:
            state.put_pending(pending)
        return state


def read_scenario(document: object) -> Scenario:
    """The scenario in a document, or `Invalid` with every problem in it."""
    file = read_scenario_file(document)
    gangs = gangs_of(file)
    queues = _queues(file, gangs.values())
    check_names(file, gangs, queues)
    nodes = {node.name: empty_node(node) for node in file.nodes}
    devices = occupy(nodes, gangs.values())
    return Scenario(
        name=file.name,
        # A server continues its searches in the next pass; a scenario has only one.
        policy=replace(file.policy, searches=1 + len(file.pending), search_work=sys.maxsize),
        nodes=tuple(nodes.values()),
        queues=queues,
        unused_shares=file.unused_shares,
        pending=tuple(pending_gang(g, gangs, nodes) for g in gangs.values() if g.can_be_placed),
        running=tuple(running_gang(gang, devices) for gang in gangs.values() if gang.placed),
        gangs=gangs,
        expect=file.expect,
    )


def _queues(file: ScenarioFile, gangs: Iterable[ScenarioGang]) -> tuple[Queue, ...]:
    """The queues that are listed, and the default queue if a gang names none."""
    listed = {queue.name: queue for queue in file.queues}
    if any(gang.queue == DEFAULT.name for gang in gangs):
        listed.setdefault(DEFAULT.name, DEFAULT)
    return tuple(listed.values())
