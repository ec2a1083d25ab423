"""The state machine of a task as data: its states, its moves, and the table of legal transitions.

The diagram in the docs, the set of terminal states and the test of every pair are derived from
`TABLE`.
"""

from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    BLOCKED = "blocked"  #: not placed, in a gang of several or before its dependencies
    PENDING = "pending"  #: not placed, a gang of one
    RESERVED = "reserved"  #: placed on a worker; no process before the release
    RUNNING = "running"  #: its worker has reported the process
    PREEMPTING = "preempting"  #: a stop was requested; the process may still live
    PREEMPTED = "preempted"  #: stopped; other tasks of its gang are still stopping
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
    STOP_BEGAN = "StopBegan"
    SHRUNK = "Shrunk"
    STOPPED = "Stopped"
    STOP_TIMED_OUT = "StopTimedOut"
    SHRINK_SETTLED = "ShrinkSettled"
    STOP_SETTLED = "StopSettled"
    GANG_RESTARTED = "GangRestarted"


class Rule(NamedTuple):
    """One row of the table: `move` leads from `source` to one of `targets`."""

    source: State
    move: Move
    targets: tuple[State, ...]
    #: For reserved tasks: whether the rule applies after the release or before it.
    released: bool | None = None


_UNPLACED = (State.BLOCKED, State.PENDING)
#: Where a failed task goes: its gang stops with it, or the task alone is requeued.
_FAILED = (State.PREEMPTED, State.BLOCKED, State.PENDING)


def _rules(
    source: State, *moves: Move, to: tuple[State, ...], released: bool | None = None
) -> tuple[Rule, ...]:
    return tuple(Rule(source, move, to, released) for move in moves)


TABLE: tuple[Rule, ...] = (
    *_rules(State.BLOCKED, Move.DEPENDENCIES_MET, Move.MEMBERS_JOINED, to=(State.PENDING,)),
    *_rules(State.BLOCKED, Move.PLACED, to=(State.RESERVED,)),
    *_rules(State.BLOCKED, Move.STOP_SETTLED, to=(State.FAILED, State.CANCELLED)),
    *_rules(State.PENDING, Move.MEMBERS_JOINED, to=(State.BLOCKED,)),
    *_rules(State.PENDING, Move.PLACED, to=(State.RESERVED,)),
    *_rules(State.PENDING, Move.CLAIMED, to=(State.RUNNING,)),
    *_rules(State.PENDING, Move.STOP_SETTLED, to=(State.FAILED, State.CANCELLED)),
    # Before the release nothing has run, so the whole start set is requeued.
    *_rules(
        State.RESERVED,
        Move.RESERVATION_EXPIRED,
        Move.WORKER_LOST,
        Move.SPAWN_FAILED,
        Move.STOP_BEGAN,
        to=_UNPLACED,
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
        to=_FAILED,
        released=True,
    ),
    # After the release the process may exist, so the task is stopped like a running one. A task
    # that its plain worker has not claimed has no process, and is requeued at once.
    *_rules(
        State.RESERVED,
        Move.STOP_BEGAN,
        Move.SHRUNK,
        to=(State.PREEMPTING, *_UNPLACED),
        released=True,
    ),
    *_rules(State.RUNNING, Move.EXITED_ZERO, to=(State.DONE,)),
    # A worker may stop a task by itself: when it shuts down, or when its lease ran out.
    *_rules(State.RUNNING, Move.STOPPED, to=_FAILED),
    *_rules(
        State.RUNNING,
        Move.EXITED_NON_ZERO,
        Move.WORKER_LOST,
        Move.VANISHED,
        Move.STALLED,
        to=_FAILED,
    ),
    *_rules(State.RUNNING, Move.STOP_BEGAN, Move.SHRUNK, to=(State.PREEMPTING,)),
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
    *_rules(State.PREEMPTED, Move.SHRINK_SETTLED, to=(*_UNPLACED, State.DONE)),
    *_rules(
        State.PREEMPTED,
        Move.STOP_SETTLED,
        to=(*_UNPLACED, State.DONE, State.FAILED, State.CANCELLED),
    ),
    # While the job has not ended, its gang may have to start again with the tasks that are done.
    *_rules(State.DONE, Move.GANG_RESTARTED, to=_UNPLACED),
)

#: (state, released, move) → the legal targets. An absent key is an illegal move.
TARGETS: dict[tuple[State, bool, Move], frozenset[State]] = {
    (rule.source, released, rule.move): frozenset(rule.targets)
    for rule in TABLE
    for released in ((False, True) if rule.released is None else (rule.released,))
}

#: The states of the tasks of an ended job. Only a restart of the whole gang leaves one of them.
TERMINAL: frozenset[State] = frozenset(State) - {
    rule.source for rule in TABLE if rule.move is not Move.GANG_RESTARTED
}
UNPLACED: frozenset[State] = frozenset(_UNPLACED)
#: States in which the worker is charged for the task.
PLACED: frozenset[State] = frozenset({State.RESERVED, State.RUNNING, State.PREEMPTING})
