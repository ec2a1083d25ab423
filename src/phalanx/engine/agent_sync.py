"""Where agents sync: their reports become events, and they are held until there is news for them.

What is known of an agent's last call is in memory only. A leader that does not know it asks for the
whole inventory, and nothing is placed on that worker before it has come.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from phalanx.core import events
from phalanx.core.errors import Conflict, CoreError, IllegalTransition, StaleEpoch, Unknown
from phalanx.core.ids import split_task
from phalanx.core.node import AttemptKey, Node
from phalanx.engine.agent_instructions import orders_for
from phalanx.engine.engine import Engine
from phalanx.engine.turn import Turn
from phalanx.store.protocol import Store
from phalanx.wire.sync import Reported, SyncReply, SyncRequest, TaskInstruction, TaskReport, Want


class _Session:
    """One agent, as of its last call."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.seq = -1
        self.calls = 0  #: a new call ends the one that is held
        #: What was said in the answer to the call of that number.
        self.told: frozenset[tuple[str, int, Want]] = frozenset()
        self.told_in = -1
        self.news = asyncio.Event()


class AgentSync:
    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._store = store
        self._sessions: dict[str, _Session] = {}
        self._cluster_id = ""

    def observe(self, turn: Turn) -> None:
        for worker in sorted(turn.woken()):
            session = self._sessions.get(worker)
            if session is not None:
                session.news.set()

    async def sync(self, worker: str, request: SyncRequest) -> SyncReply:
        """Raises Unknown for a worker that has to register, Conflict for a superseded one."""
        session = self._session(worker, request)
        session.calls += 1
        call = session.calls
        session.news.set()  # whoever is held is let go
        known = await self._known_jobs(request)
        # Before looking: the turn in which we look may have more news for this worker after it.
        session.news.clear()
        orders, full = await self._engine.do(
            lambda turn: self._take(turn, worker, session, request, known)
        )
        self._engine.hear_worker(worker)
        loop = asyncio.get_running_loop()
        until = loop.time() + min(request.wait, self._engine.settings.sync_wait_s)
        while not full and call == session.calls and not _has_news(session, orders):
            try:
                async with asyncio.timeout_at(until):
                    await session.news.wait()
            except TimeoutError:
                break
            if call != session.calls:
                break
            session.news.clear()
            orders, full = await self._engine.do(lambda turn: _orders(turn, worker, request))
        if call == session.calls:
            # Whoever made an older call has gone, and with it what is said in its answer.
            session.told = frozenset((o.id, o.epoch, o.want) for o in orders)
            session.told_in = request.seq
        return SyncReply(
            cluster_id=await self._cluster(),
            term=self._engine.term or 0,
            lost_after=self._engine.settings.lost_after_s,
            tasks=tuple(orders),
            full=full,
        )

    async def _cluster(self) -> str:
        if not self._cluster_id:
            self._cluster_id = await self._store.cluster_id()  # which never changes
        return self._cluster_id

    def _session(self, worker: str, request: SyncRequest) -> _Session:
        session = self._sessions.get(worker)
        if session is None or session.incarnation != request.incarnation:
            session = self._sessions[worker] = _Session(request.incarnation)
        return session

    async def _known_jobs(self, request: SyncRequest) -> frozenset[str]:
        """Which of the jobs in a full inventory the store has heard of, be they finished."""
        if not request.full or not request.tasks:
            return frozenset()
        jobs = {split_task(report.id)[0] for report in request.tasks}
        live = await self._engine.do(lambda turn: jobs & turn.cluster.gangs.keys())
        found = {job for job in jobs - live if await self._store.job(job) is not None}
        return frozenset(live | found)

    def _take(
        self,
        turn: Turn,
        worker: str,
        session: _Session,
        request: SyncRequest,
        known: frozenset[str],
    ) -> tuple[list[TaskInstruction], bool]:
        _speaker(turn, worker, request)
        if request.term != self._engine.term:
            return [], True
        extra: list[TaskInstruction] = []
        if request.seq > session.seq:
            session.seq = request.seq
            if request.heard != session.told_in:
                session.told = frozenset()  # it may not have heard of it
            if request.leaving:
                turn.apply(events.WorkerLeaving(worker))
            if request.full:
                has = tuple((report.id, report.epoch) for report in request.tasks)
                turn.apply(events.Inventoried(worker, request.incarnation, has))
            for report in request.tasks:
                order = _report(turn, worker, report, known if request.full else None)
                if order is not None:
                    extra.append(order)
        orders, full = _orders(turn, worker, request)
        return extra + orders, full


def _speaker(turn: Turn, worker: str, request: SyncRequest) -> Node:
    """The worker, if it is still for this agent to speak for it."""
    node = turn.cluster.nodes.get(worker)
    if node is None:
        raise Unknown(f"worker {worker} is not registered; register it first")
    if node.worker.incarnation != request.incarnation:
        raise Conflict(
            f"worker {worker} was registered again since; incarnation {request.incarnation} "
            "must stop its tasks"
        )
    return node


def _orders(turn: Turn, worker: str, request: SyncRequest) -> tuple[list[TaskInstruction], bool]:
    node = _speaker(turn, worker, request)
    return orders_for(turn.cluster, node), not node.inventoried


def _has_news(session: _Session, orders: list[TaskInstruction]) -> bool:
    return any((order.id, order.epoch, order.want) not in session.told for order in orders)


_EVENTS: dict[Reported, Callable[[str, TaskReport], events.Event]] = {
    Reported.ACCEPTED: lambda worker, r: events.Accepted(r.id, r.epoch),
    Reported.RUNNING: lambda worker, r: events.Started(r.id, r.epoch),
    Reported.EXITED: lambda worker, r: events.Exited(
        r.id, r.epoch, r.exit_code, r.signal, r.signalled
    ),
    Reported.SPAWN_FAILED: lambda worker, r: events.SpawnFailed(r.id, r.epoch, r.message),
    Reported.GONE: lambda worker, r: events.Gone(worker, r.id, r.epoch),
}
_OVER = (Reported.EXITED, Reported.SPAWN_FAILED, Reported.GONE)


def _report(
    turn: Turn, worker: str, report: TaskReport, known: frozenset[str] | None
) -> TaskInstruction | None:
    """One report becomes an event; what does not concern a present attempt is cleared away."""
    attempt: AttemptKey = (report.id, report.epoch)
    over = report.state in _OVER
    cluster = turn.cluster
    if attempt not in cluster.nodes[worker].charges or attempt in cluster.residues:
        return _not_present(turn, worker, report, known)
    try:
        if report.state is Reported.RUNNING and (report.safe or report.step is not None):
            turn.apply(events.Started(*attempt))
            turn.apply(events.Progressed(*attempt, report.step, report.safe))
        else:
            turn.apply(_EVENTS[report.state](worker, report))
    except (StaleEpoch, Unknown, IllegalTransition):
        return _not_present(turn, worker, report, known)
    return TaskInstruction(*attempt, Want.FORGET) if over else None


def _not_present(
    turn: Turn, worker: str, report: TaskReport, known: frozenset[str] | None
) -> TaskInstruction | None:
    """An attempt that is not the present one: it is stopped, and forgotten once it is over."""
    attempt: AttemptKey = (report.id, report.epoch)
    if report.state in _OVER:
        with suppress(CoreError):  # perhaps nobody was charged for it
            turn.apply(events.Gone(worker, *attempt))
        return TaskInstruction(*attempt, Want.FORGET)
    if known is not None and split_task(report.id)[0] not in known:
        return None  # the store never heard of the job; an operator has to look at it
    return TaskInstruction(*attempt, Want.STOP)
