"""Rules between tasks: where a task may go depends on the tasks that are placed around it.

The planner knows no such rule itself. A capacity may have `PlacedTasks`, which know which tasks are
where and what the rules allow; Kubernetes brings its own. Without them nothing is evaluated.
"""

from collections.abc import Hashable, Iterable
from typing import NamedTuple, Protocol

from phalanx.plan.state.nodes import Bools, Floats, NodeTable


class Restriction(NamedTuple):
    """Where the next task may go, as long as no other task is placed or leaves."""

    nodes: Bools | None = None  #: None: all nodes
    per_node: int | None = None  #: at most this many more of the same tasks on one node
    one_by_one: bool = False  #: each placed task changes the nodes that the next one may use
    rules: tuple[str, ...] = ()  #: the rules that exclude nodes, in words
    penalty: Floats | None = None  #: by node, from 0 to 1: nodes with a higher one are used later


class PlacedTasks(Protocol):
    """The tasks on all nodes of a capacity, as far as rules ask about them."""

    def fork(self) -> "PlacedTasks":
        """Equal tasks. Later changes of either side do not show in the other."""

    def place(self, traits: Hashable, node: int, count: int) -> None:
        """Add so many tasks with these traits to a node; a negative number removes them."""

    def restriction(self, traits: Hashable, table: NodeTable) -> Restriction | None:
        """Where one more task with these traits may go; None: on every node."""


def strictest(restrictions: Iterable[Restriction | None]) -> Restriction | None:
    """What all of the restrictions allow; None if there is none."""
    strict: Restriction | None = None
    for each in restrictions:
        if strict is None or each is None:
            strict = strict or each
            continue
        nodes = each.nodes if strict.nodes is None else strict.nodes
        if strict.nodes is not None and each.nodes is not None:
            nodes = strict.nodes & each.nodes
        limits = [limit for limit in (strict.per_node, each.per_node) if limit is not None]
        strict = Restriction(
            nodes,
            min(limits, default=None),
            strict.one_by_one or each.one_by_one,
            tuple(dict.fromkeys((*strict.rules, *each.rules))),
            each.penalty if strict.penalty is None else strict.penalty,
        )
    return strict
