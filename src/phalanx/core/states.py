"""The life of a task as data: its states, what can happen to it, and one table of what may follow.

The diagram in the docs, the terminal set and the test of every pair are derived from `TABLE`.
"""

from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    BLOCKED = "blocked"  #: waits for its gang, for members or dependencies of it
    PENDING = "pending"  #: waits alone: a gang of one
    RESERVED = "reserved"  #: promised to a worker; no process before the release
    RUNNING = "running"  #: its process was seen
    PREEMPTING = "preempting"  #: told to stop; its process may still live
    PREEMPTED = "preempted"  #: stopped; its gang has not settled yet
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Move(StrEnum):
    """What can happen to one task."""

    DEPENDENCIES_MET = "DependenciesMet"
    MEMBERS_JOINED = "MembersJoined"
    PLACED = "Placed"
    CLAIMED = "Claimed"
    RESERVATION_EXPIRED = "ReservationExpired"
    STARTED = "Started"
    START_TIMED_OUT = "StartTimedOut"
    SPAWN_FAILED = "SpawnFailed"
    EXITED_ZERO = "Exited(0)"
    EXITED_NON_ZERO = "Exited(≠0)"
    WORKER_LOST = "WorkerLost"
    VANISHED = "Vanished"
    STALLED = "Stalled"
    DRAIN_BEGAN = "DrainBegan"
    SHRUNK = "Shrunk"
    STOPPED = "Stopped"
    STOP_TIMED_OUT = "StopTimedOut"
    SHRINK_SETTLED = "ShrinkSettled"
    DRAIN_SETTLED = "DrainSettled"


class Rule(NamedTuple):
    """One row of the table: from `source`, `move` leads to one of `targets`."""

    source: State
    move: Move
    targets: tuple[State, ...]
    #: For reserved tasks: whether the rule holds before or after the release.
    released: bool | None = None


_WAITING = (State.BLOCKED, State.PENDING)
#: Where a task goes whose process is gone: to its gang's drain, or back to waiting alone.
_FALLEN = (State.PREEMPTED, State.BLOCKED, State.PENDING)


def _rules(
    source: State, *moves: Move, to: tuple[State, ...], released: bool | None = None
) -> tuple[Rule, ...]:
    return tuple(Rule(source, move, to, released) for move in moves)


TABLE: tuple[Rule, ...] = (
    *_rules(State.BLOCKED, Move.DEPENDENCIES_MET, Move.MEMBERS_JOINED, to=(State.PENDING,)),
    *_rules(State.BLOCKED, Move.PLACED, to=(State.RESERVED,)),
    *_rules(State.BLOCKED, Move.DRAIN_SETTLED, to=(State.FAILED, State.CANCELLED)),
    *_rules(State.PENDING, Move.PLACED, to=(State.RESERVED,)),
    *_rules(State.PENDING, Move.CLAIMED, to=(State.RUNNING,)),
    *_rules(State.PENDING, Move.DRAIN_SETTLED, to=(State.FAILED, State.CANCELLED)),
    # Before the release nothing ever ran: the whole start set goes back.
    *_rules(
        State.RESERVED,
        Move.RESERVATION_EXPIRED,
        Move.WORKER_LOST,
        Move.SPAWN_FAILED,
        Move.DRAIN_BEGAN,
        to=_WAITING,
        released=False,
    ),
    *_rules(State.RESERVED, Move.STARTED, to=(State.RUNNING,), released=True),
    *_rules(State.RESERVED, Move.EXITED_ZERO, to=(State.DONE,), released=True),
    *_rules(
        State.RESERVED,
        Move.EXITED_NON_ZERO,
        Move.START_TIMED_OUT,
        Move.SPAWN_FAILED,
        Move.WORKER_LOST,
        Move.VANISHED,
        Move.STOPPED,
        to=_FALLEN,
        released=True,
    ),
    # After the release it may be running by now, so it is stopped like a running one.
    *_rules(State.RESERVED, Move.DRAIN_BEGAN, Move.SHRUNK, to=(State.PREEMPTING,), released=True),
    *_rules(State.RUNNING, Move.EXITED_ZERO, to=(State.DONE,)),
    # A worker may stop a task of its own accord: it shuts down, or its lease ran out.
    *_rules(State.RUNNING, Move.STOPPED, to=_FALLEN),
    *_rules(
        State.RUNNING,
        Move.EXITED_NON_ZERO,
        Move.WORKER_LOST,
        Move.VANISHED,
        Move.STALLED,
        to=_FALLEN,
    ),
    *_rules(State.RUNNING, Move.DRAIN_BEGAN, Move.SHRUNK, to=(State.PREEMPTING,)),
    *_rules(
        State.PREEMPTING,
        Move.STOPPED,
        Move.EXITED_ZERO,
        Move.EXITED_NON_ZERO,
        Move.SPAWN_FAILED,
        Move.WORKER_LOST,
        Move.VANISHED,
        Move.STOP_TIMED_OUT,
        to=(State.PREEMPTED,),
    ),
    *_rules(State.PREEMPTED, Move.SHRINK_SETTLED, to=(State.BLOCKED, State.DONE)),
    *_rules(
        State.PREEMPTED,
        Move.DRAIN_SETTLED,
        to=(*_WAITING, State.DONE, State.FAILED, State.CANCELLED),
    ),
)

#: (state, released, move) → where it may lead. Absent means never.
TARGETS: dict[tuple[State, bool, Move], frozenset[State]] = {
    (rule.source, released, rule.move): frozenset(rule.targets)
    for rule in TABLE
    for released in ((False, True) if rule.released is None else (rule.released,))
}

TERMINAL: frozenset[State] = frozenset(State) - {rule.source for rule in TABLE}
WAITING: frozenset[State] = frozenset(_WAITING)
#: States in which a worker is charged for the task.
PLACED: frozenset[State] = frozenset({State.RESERVED, State.RUNNING, State.PREEMPTING})
