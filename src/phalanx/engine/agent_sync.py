"""The sync calls of agents: their reports become events, and the answer is their instructions.

A call is held open until there are new instructions. The state of an agent's last call is in memory
only. A leader without it asks the agent for its full inventory, and places nothing on the worker
before the inventory has arrived.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from phalanx.core import events
from phalanx.core.errors import Conflict, CoreError, IllegalTransition, StaleEpoch, Unknown
from phalanx.core.ids import split_task
from phalanx.core.node import AttemptKey, Node
from phalanx.core.states import State
from phalanx.engine.agent_instructions import GangEnvironments, instructions_for
from phalanx.engine.engine import Engine
from phalanx.engine.gang_inputs import NOT_PRIVATE, GangInputs, InputDelivery, InputSource
from phalanx.engine.output.output_sizes import OutputSizes
from phalanx.engine.progress_board import ProgressBoard
from phalanx.engine.turn import Turn
from phalanx.store.protocol import Store
from phalanx.wire.sync import (
    ABNORMAL_LIMIT,
    Reported,
    SyncReply,
    SyncRequest,
    TaskInstruction,
    TaskProgress,
    TaskReport,
    Want,
)

#: An answer that only confirms ends waits this long for the worker's next task: on a busy cluster
#: it follows soon, and one call serves for both.
_CONFIRM_S = 0.1


class _Session:
    """The state of one agent after its last call."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.seq = -1
        self.calls = 0  #: a new call ends the one that is held
        #: The instructions in the answer to the call with this `seq`.
        self.sent: frozenset[tuple[str, int, Want]] = frozenset()
        self.sent_in = -1
        self.has_unconfirmed = False  #: ends whose report has not been answered
        self.changed = asyncio.Event()

    async def change(self, until: float) -> bool:
        """Wait for the event; False if the time comes first."""
        is_over = False

        def end() -> None:
            nonlocal is_over
            is_over = True
            self.changed.set()

        # Cheaper than a timeout around the wait, and a worker that is idle waits all the time.
        timer = asyncio.get_running_loop().call_at(until, end)
        try:
            await self.changed.wait()
        finally:
            timer.cancel()
        return not is_over


class AgentSync:
    def __init__(
        self, engine: Engine, store: Store, input_source: InputSource | None = None
    ) -> None:
        self._engine = engine
        self._inputs = GangInputs(engine, input_source, self._wake)
        self._store = store
        self._sessions: dict[str, _Session] = {}
        self._environments = GangEnvironments()
        self._cluster_id = ""
        self.progress = ProgressBoard()
        self.output_sizes = OutputSizes()

    def observe(self, turn: Turn) -> None:
        self._inputs.observe(turn)
        self._environments.forget()
        for worker in sorted(turn.woken()):
            self._wake(worker)

    def _wake(self, worker: str) -> None:
        session = self._sessions.get(worker)
        if session is not None:
            session.changed.set()

    def end_call(self, worker: str) -> None:
        """Answer the call of a worker that is held."""
        session = self._sessions.get(worker)
        if session is not None:
            session.calls += 1
            session.changed.set()

    async def sync(
        self, worker: str, request: SyncRequest, *, is_private: bool = True
    ) -> SyncReply:
        """Take an agent's reports, and answer with its instructions. Secrets are sent only over a
        private connection.

        Raises Unknown for a worker that is not registered, Conflict for one that was registered
        again by another agent.
        """
        session = self._session(worker, request)
        session.calls += 1
        call = session.calls
        session.changed.set()  # ends the call that is held
        stored_jobs = await self._stored_jobs(request)
        # Cleared before the turn: later changes of that turn may bring further instructions.
        session.changed.clear()
        inputs = InputDelivery(self._inputs, worker, is_private=is_private)

        def take(turn: Turn) -> tuple[list[TaskInstruction], list[TaskInstruction], bool]:
            extra = self._take(turn, worker, session, request, stored_jobs)
            if request.term != self._engine.term:
                return [], [], True
            return extra, *self._instructions(turn, worker, request, inputs)

        extra, instructions, full = await self._engine.do(take)
        # A commit can outlast the lease; instructions are sent only while this server leads.
        self._engine.check_leading()
        self._engine.hear_worker(worker)
        until = self._held_until(session, request, extra)
        while not full and call == session.calls and not _has_new(session, instructions):
            if not await session.change(until) or call != session.calls:
                break
            session.changed.clear()
            instructions, full = await self._engine.do(
                lambda turn: self._instructions(turn, worker, request, inputs)
            )
        if call == session.calls:
            # The agent does not read the answer to an older call.
            answer = (*extra, *instructions)
            session.sent = frozenset((each.id, each.epoch, each.want) for each in answer)
            session.sent_in, session.has_unconfirmed = request.seq, False
        return SyncReply(
            cluster_id=await self._cluster(),
            term=self._engine.term or 0,
            lost_after=self._engine.settings.lost_after_s,
            tasks=(*extra, *instructions),
            full=full,
            checkpoint_limit=self._engine.settings.checkpoint_limit_bytes,
        )

    def _held_until(
        self, session: _Session, request: SyncRequest, extra: list[TaskInstruction]
    ) -> float:
        """The time at which a call is answered, unless there are new instructions before.

        `extra` are instructions that follow from its reports.
        """
        now_s = asyncio.get_running_loop().time()
        until = now_s + min(request.wait, self._engine.settings.sync_wait_s)
        if _has_new(session, [each for each in extra if each.want is Want.STOP]):
            return now_s
        if not any(each.want is Want.FORGET for each in extra):
            return until
        # A busy agent replaces the call that is held, and reports the same ends again.
        if session.has_unconfirmed:
            return now_s
        session.has_unconfirmed = True
        return min(until, now_s + _CONFIRM_S)

    async def _cluster(self) -> str:
        if not self._cluster_id:
            self._cluster_id = await self._store.cluster_id()  # which never changes
        return self._cluster_id

    def _session(self, worker: str, request: SyncRequest) -> _Session:
        session = self._sessions.get(worker)
        if session is None or session.incarnation != request.incarnation:
            session = self._sessions[worker] = _Session(request.incarnation)
        return session

    async def _stored_jobs(self, request: SyncRequest) -> frozenset[str]:
        """The jobs of a full inventory that are in the store, finished or not."""
        if not request.full or not request.tasks:
            return frozenset()
        jobs = {split_task(report.id)[0] for report in request.tasks}
        live = await self._engine.do(lambda turn: jobs & turn.cluster.gangs.keys())
        return frozenset(live | (await self._store.job_summaries(jobs - live)).keys())

    def _take(
        self,
        turn: Turn,
        worker: str,
        session: _Session,
        request: SyncRequest,
        stored_jobs: frozenset[str],
    ) -> list[TaskInstruction]:
        """Apply the reports: the instructions that follow from them. A request with another term
        has reports that may be outdated."""
        _registered(turn, worker, request)
        extra: list[TaskInstruction] = []
        if request.term == self._engine.term and request.seq > session.seq:
            session.seq = request.seq
            self.progress.begin_term(request.term)
            if request.heard != session.sent_in:
                session.sent = frozenset()  # the agent may not have received that answer
            if request.leaving:
                turn.apply(events.WorkerLeaving(worker))
            if request.full:
                inventory = tuple((report.id, report.epoch) for report in request.tasks)
                turn.apply(events.Inventoried(worker, request.incarnation, inventory))
            for report in request.tasks:
                stored = stored_jobs if request.full else None
                is_its_own = (report.id, report.epoch) in turn.cluster.nodes[worker].charges
                instruction = _report(turn, worker, report, stored, self.progress)
                if is_its_own and report.state is Reported.EXITED:
                    self.output_sizes.note(report.id, report.epoch, report.output_bytes)
                if instruction is not None:
                    extra.append(instruction)
        return extra

    def _instructions(
        self, turn: Turn, worker: str, request: SyncRequest, inputs: InputDelivery
    ) -> tuple[list[TaskInstruction], bool]:
        """The instructions for the agent, and whether its full inventory is needed."""
        node = _registered(turn, worker, request)
        instructions = instructions_for(turn.cluster, node, self._environments, inputs)
        while inputs.refused:
            with suppress(CoreError):  # another task of its gang may have stopped it
                turn.apply(events.SpawnFailed(*inputs.refused.pop(), NOT_PRIVATE, final=True))
        return instructions, not node.inventoried


def _registered(turn: Turn, worker: str, request: SyncRequest) -> Node:
    """The worker, if this agent's registration is the current one."""
    node = turn.cluster.nodes.get(worker)
    if node is None:
        raise Unknown(f"worker {worker[:80]} is not registered; register it first")
    if node.worker.incarnation != request.incarnation:
        raise Conflict(
            f"worker {worker} was registered again since; incarnation {request.incarnation} must"
            " stop its tasks"
        )
    return node


def _has_new(session: _Session, instructions: list[TaskInstruction]) -> bool:
    return any((each.id, each.epoch, each.want) not in session.sent for each in instructions)


#: A worker explains an exit in one sentence.
_NOTE_CHARS = 300
#: The error of a program that could not be started has its name, which may be long.
_MESSAGE_CHARS = 2000

_EVENTS: dict[Reported, Callable[[str, TaskReport], events.Event]] = {
    Reported.PREPARING: lambda worker, r: events.PreparationReported(r.id, r.epoch, r.message),
    Reported.ACCEPTED: lambda worker, r: events.Accepted(r.id, r.epoch),
    Reported.RUNNING: lambda worker, r: events.Started(r.id, r.epoch),
    Reported.EXITED: lambda worker, r: events.Exited(
        r.id, r.epoch, r.exit_code, r.signal, r.signalled, r.memory_used, r.message[:_NOTE_CHARS]
    ),
    Reported.SPAWN_FAILED: lambda worker, r: events.SpawnFailed(
        r.id, r.epoch, r.message[:_MESSAGE_CHARS]
    ),
    Reported.START_REFUSED: lambda worker, r: events.SpawnFailed(
        r.id, r.epoch, r.message[:_MESSAGE_CHARS], final=True
    ),
    Reported.GONE: lambda worker, r: events.Gone(worker, r.id, r.epoch),
}
_ENDED = (Reported.EXITED, Reported.SPAWN_FAILED, Reported.START_REFUSED, Reported.GONE)


def _report(
    turn: Turn,
    worker: str,
    report: TaskReport,
    stored_jobs: frozenset[str] | None,
    board: ProgressBoard,
) -> TaskInstruction | None:
    """Apply one report. The instruction that follows from it, if any."""
    attempt: AttemptKey = (report.id, report.epoch)
    cluster = turn.cluster
    if attempt not in cluster.nodes[worker].charges or attempt in cluster.residues:
        return _not_current(turn, worker, report, stored_jobs)
    try:
        if report.problem:
            # First, because the end of the last task ends the job.
            turn.apply(events.ProblemReported(*attempt, report.problem))
        if report.progress is not None:
            _progress(turn, attempt, report.progress)
            board.note(*attempt, turn.now, report.progress)
        if report.progress is None or report.state is not Reported.RUNNING:
            turn.apply(_EVENTS[report.state](worker, report))
    except (StaleEpoch, Unknown, IllegalTransition):
        return _not_current(turn, worker, report, stored_jobs)
    return TaskInstruction(*attempt, Want.FORGET) if report.state in _ENDED else None


def _progress(turn: Turn, attempt: AttemptKey, progress: TaskProgress) -> None:
    """Apply what the core has to know of a task's progress: most reports are only shown."""
    job, index = split_task(attempt[0])
    gang = turn.cluster.gangs[job]
    if gang.tasks[index].state is not State.RUNNING:
        turn.apply(events.Started(*attempt))
    if progress.abnormal:
        values = progress.abnormal[:ABNORMAL_LIMIT]
        turn.apply(events.ValuesAbnormal(*attempt, values))
    can_stall = gang.job.spec.stall_after is not None
    if progress.safe or (progress.step is not None and can_stall):
        saved_step = progress.saved_step
        turn.apply(events.Progressed(*attempt, progress.step, progress.safe, saved_step))


def _not_current(
    turn: Turn, worker: str, report: TaskReport, stored_jobs: frozenset[str] | None
) -> TaskInstruction | None:
    """Stop an attempt that is not the current one, and forget it once it has ended."""
    attempt: AttemptKey = (report.id, report.epoch)
    if report.state in _ENDED:
        with suppress(CoreError):  # the worker may not be charged for it
            turn.apply(events.Gone(worker, *attempt))
        return TaskInstruction(*attempt, Want.FORGET)
    if stored_jobs is not None and split_task(report.id)[0] not in stored_jobs:
        return None  # the store has no such job; an operator must decide
    return TaskInstruction(*attempt, Want.STOP)
