"""Submissions of jobs: ids, idempotency keys, and dependencies that have ended.

Facts that only the store has are looked up before the turn, and again if they have changed by then.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from phalanx.core.errors import Conflict, CoreError, Invalid, Problem
from phalanx.core.events import CronSet, MembersJoined, QueueSet, Submitted
from phalanx.core.model import Cron, GangMembers, Job, Queue, cron_key
from phalanx.core.spec.job import JobSpec, with_images
from phalanx.core.warnings import AnyWarning, BeyondTotal
from phalanx.engine.admission import SubmitRate
from phalanx.engine.dependency_lookup import Dependencies, look_up
from phalanx.engine.engine import Engine
from phalanx.engine.errors import NoAnswer, UncertainOutcome
from phalanx.engine.idempotency import ClaimedKey, IdempotencyKeys, RequestKey
from phalanx.engine.job_ids import JobIds
from phalanx.engine.submit_warnings import SubmitWarnings
from phalanx.engine.turn import Turn
from phalanx.store.protocol import Store

T = TypeVar("T")

#: Jobs and tasks of one caller that are submitted in one turn.
_JOBS_OF_TURN = 100
_TASKS_OF_TURN = 1000


class Submission(NamedTuple):
    spec: JobSpec
    owner: str = ""
    part: GangMembers | None = None  #: for a job that may be only a part of its gang
    policies: tuple[str, ...] = ()  #: the policies that permit it
    images: Mapping[str, str] = {}  #: by image: the reference with its digest

    @property
    def content(self) -> tuple[JobSpec, str, GangMembers | None]:
        """What the caller asked for, without what the server found out about it."""
        return self.spec, self.owner, self.part


class AcceptedJob(NamedTuple):
    """A submission that was accepted, now or earlier."""

    job: Job
    is_new: bool
    warnings: tuple[AnyWarning, ...] = ()


class Scheduled(NamedTuple):
    """A submission with a schedule, which created or replaced a cron."""

    cron: Cron
    is_new: bool
    warnings: tuple[AnyWarning, ...] = ()


Accepted = AcceptedJob | Scheduled
Outcome = Accepted | CoreError
#: Called in the turn with everything that a request has submitted or set.
OnSubmitted = Callable[[Turn, Accepted | Queue], None]


class _KeyedRequest:
    """The submissions of one request, and the jobs that they became so far."""

    def __init__(
        self,
        submissions: Sequence[Submission],
        earlier_jobs: Sequence[Job | None],
        key: ClaimedKey,
        on_submitted: OnSubmitted | None,
    ) -> None:
        self.submissions = submissions
        self.earlier_jobs = earlier_jobs  #: the jobs that the same request submitted before
        self._key = key
        self._on_submitted = on_submitted
        self._jobs = [None if job is None else job.id for job in earlier_jobs]

    def note_outcomes(self, turn: Turn, part: slice, outcomes: Sequence[object]) -> None:
        """Store the key in the commit of this turn if the turn has submitted a job, and call
        `on_submitted` for everything new."""
        self._jobs[part] = [
            outcome.job.id if isinstance(outcome, AcceptedJob) else None for outcome in outcomes
        ]
        if any(self._jobs[part]):
            self._key.use(turn, *self._jobs)
        if self._on_submitted is not None:
            for earlier_job, outcome in zip(self.earlier_jobs[part], outcomes, strict=True):
                if earlier_job is None and isinstance(outcome, AcceptedJob | Scheduled):
                    self._on_submitted(turn, outcome)


class _LookedUp(NamedTuple):
    """Submissions with the facts about them that only the store has."""

    submissions: Sequence[Submission]
    earlier_jobs: Sequence[Job | None]  #: the job of each submission that was accepted earlier
    dependencies: Dependencies
    ids: Sequence[str]  #: an unused id for each submission


class _LookUpAgain(Exception):  # noqa: N818
    """A dependency has ended, or an id was taken, since it was looked up."""


class Submissions:
    def __init__(
        self,
        engine: Engine,
        store: Store,
        keys: IdempotencyKeys,
        warnings: SubmitWarnings | None = None,
    ) -> None:
        """Without `warnings` every submission is answered without warnings."""
        self._warnings = warnings
        self._engine = engine
        self._store = store
        self._keys = keys
        self._ids = JobIds(engine, store)
        self._rate = SubmitRate(engine.settings.submit_rate)

    async def submit(
        self,
        submissions: Sequence[Submission],
        key: RequestKey | None = None,
        on_submitted: OnSubmitted | None = None,
    ) -> list[Outcome]:
        """Accept or refuse each submission on its own. Many of them take several turns, so that
        the commands of other callers come between.

        With a key that was used before, the jobs of that request are returned, and what it did not
        submit is submitted. Raises KeyReused, and UncertainOutcome if only the first jobs were
        submitted.
        """
        async with self._keys.claim(key, [each.content for each in submissions]) as claimed:
            self._count(submissions, claimed)
            request = await self._request(submissions, claimed, on_submitted)
            outcomes: list[Outcome] = []
            for part in _slices(submissions):
                try:
                    outcomes += await self._in_one_turn(request, part, self._submit_each)
                except NoAnswer as error:
                    if not outcomes:
                        raise
                    raise UncertainOutcome(
                        f"the first {len(outcomes)} of {len(submissions)} jobs were submitted, then"
                        f" {error}"
                    ) from error
            return outcomes

    async def submit_together(
        self,
        submissions: Sequence[Submission],
        queues: Sequence[Queue] = (),
        key: RequestKey | None = None,
        on_submitted: OnSubmitted | None = None,
    ) -> list[Accepted]:
        """Accept all submissions or none, after setting the queues.

        Raises Invalid with every problem, each with the name of its job or queue, and KeyReused.
        """
        contents = [each.content for each in submissions]
        async with self._keys.claim(key, contents, queues) as claimed:
            self._count(submissions, claimed)
            request = await self._request(submissions, claimed, on_submitted)
            # A repeated request must not undo later changes of the queues.
            new = queues if claimed.earlier is None else ()
            everything = slice(0, len(submissions))
            submit_all = partial(self._submit_all, new, on_submitted)
            return await self._in_one_turn(request, everything, submit_all)

    def _count(self, submissions: Sequence[Submission], key: ClaimedKey) -> None:
        """Raise TooManyRequests if a namespace submits too fast. A repeated request is free."""
        if key.earlier is None:
            now_s = asyncio.get_running_loop().time()
            self._rate.take((submission.spec for submission in submissions), now_s)

    async def _in_one_turn(
        self, request: _KeyedRequest, part: slice, submit_in: Callable[[_LookedUp, Turn], list[T]]
    ) -> list[T]:
        submissions, earlier_jobs = request.submissions[part], request.earlier_jobs[part]

        def work(turn: Turn) -> list[T]:
            outcomes = submit_in(looked_up, turn)
            request.note_outcomes(turn, part, outcomes)
            return outcomes

        while True:
            specs = [submission.spec for submission in submissions]
            dependencies = await look_up(self._engine, self._store, specs)
            ids = await self._ids.take(len(submissions))
            looked_up = _LookedUp(submissions, earlier_jobs, dependencies, ids)
            try:
                return await self._engine.do(work)
            except _LookUpAgain:
                continue

    async def _request(
        self, submissions: Sequence[Submission], key: ClaimedKey, on_submitted: OnSubmitted | None
    ) -> _KeyedRequest:
        """The request, with the jobs that it submitted before. Raises Conflict if one is gone."""
        earlier_jobs: list[Job | None] = []
        for job in (None,) * len(submissions) if key.earlier is None else key.earlier.jobs:
            row = None if job is None else await self._store.job(job)
            if job is not None and row is None:
                raise Conflict(
                    f"job {job} was submitted with this idempotency key and has been removed since;"
                    " send a new key to submit it again"
                )
            earlier_jobs.append(None if row is None else row[0])
        return _KeyedRequest(submissions, earlier_jobs, key, on_submitted)

    def _submit_each(self, looked_up: _LookedUp, turn: Turn) -> list[Outcome]:
        return [
            outcome if isinstance(outcome, CoreError) else self._with_warnings(turn, outcome)
            for outcome in self._outcomes(turn, looked_up)
        ]

    def _submit_all(
        self,
        queues: Sequence[Queue],
        on_submitted: OnSubmitted | None,
        looked_up: _LookedUp,
        turn: Turn,
    ) -> list[Accepted]:
        # Tried on a copy of the cluster first: a turn cannot take back what it has applied.
        trial = turn.trial_copy()
        _check_together(_set_queues(trial, queues), looked_up, self._outcomes(trial, looked_up))
        _set_queues(turn, queues)
        if on_submitted is not None:
            for queue in queues:
                on_submitted(turn, queue)
        return [
            self._with_warnings(turn, outcome)
            for outcome in self._outcomes(turn, looked_up)
            if not isinstance(outcome, CoreError)
        ]

    def _outcomes(self, turn: Turn, looked_up: _LookedUp) -> list[Outcome]:
        live = turn.cluster.gangs
        is_outdated = looked_up.dependencies.is_outdated(turn.cluster)
        if is_outdated or any(job in live for job in looked_up.ids):
            raise _LookUpAgain
        outcomes: list[Outcome] = []
        each = zip(looked_up.submissions, looked_up.earlier_jobs, looked_up.ids, strict=True)
        for submission, earlier_job, new_id in each:
            if submission.spec.schedule is not None:
                outcomes.append(self._schedule(turn, submission))
                continue
            if earlier_job is not None:
                gang = live.get(earlier_job.id)
                outcomes.append(
                    AcceptedJob(earlier_job if gang is None else gang.job, is_new=False)
                )
                continue
            try:
                outcomes.append(
                    self._join(turn, submission)
                    or _submit(turn, new_id, submission, looked_up.dependencies)
                )
            except CoreError as error:
                outcomes.append(error)
        return outcomes

    def _with_warnings(self, turn: Turn, accepted: Accepted) -> Accepted:
        spec = accepted.cron.spec if isinstance(accepted, Scheduled) else accepted.job.spec
        if self._warnings is None or (
            isinstance(accepted, AcceptedJob) and accepted.job.awaits_members
        ):
            return accepted  # an incomplete gang is not judged before its last part
        warnings = self._warnings.of(turn, spec)
        if isinstance(accepted, AcceptedJob):
            warnings = (*_beyond_total(accepted.job), *warnings)
        return accepted._replace(warnings=warnings)

    def _schedule(self, turn: Turn, submission: Submission) -> Scheduled | CoreError:
        """Create or replace a cron. Repeating it changes nothing, so it needs no key."""
        spec = submission.spec
        key = cron_key(spec.namespace, spec.name or "")
        is_new = key not in turn.cluster.crons
        try:
            turn.apply(CronSet(spec, submission.owner))
        except CoreError as error:
            return error
        return Scheduled(turn.cluster.crons[key], is_new)

    def _join(self, turn: Turn, submission: Submission) -> AcceptedJob | None:
        """Add a part of a gang to the gang of that name; None if there is none."""
        spec, part, cluster = submission.spec, submission.part, turn.cluster
        job = cluster.names.get((spec.namespace, spec.name or ""))
        if job is None or part is None or cluster.gangs[job].job.members is None:
            return None
        joined = turn.apply(MembersJoined(job, with_images(spec, submission.images), part))
        return AcceptedJob(joined.gangs[job].job, is_new=False)


def _beyond_total(job: Job) -> Iterator[BeyondTotal]:
    total = None if job.members is None else job.members.total
    if total is not None and job.spec.size > total:
        yield BeyondTotal(job.spec.size, total)


def _slices(submissions: Sequence[Submission]) -> Iterator[slice]:
    """Parts of the submissions that are small enough for one turn."""
    first = tasks = 0
    for number, submission in enumerate(submissions):
        tasks += submission.spec.size
        if number > first and (number - first >= _JOBS_OF_TURN or tasks > _TASKS_OF_TURN):
            yield slice(first, number)
            first, tasks = number, submission.spec.size
    yield slice(first, len(submissions))


def _submit(
    turn: Turn, job: str, submission: Submission, dependencies: Dependencies
) -> AcceptedJob:
    spec = dependencies.resolved(submission.spec, turn.cluster)
    ended = dependencies.ended(spec)
    spec = with_images(spec, submission.images)
    event = Submitted(job, spec, submission.owner, ended, submission.part, submission.policies)
    return AcceptedJob(turn.apply(event).gangs[job].job, is_new=True)


def _set_queues(turn: Turn, queues: Sequence[Queue]) -> list[Problem]:
    problems = []
    for queue in queues:
        try:
            turn.apply(QueueSet(queue))
        except Invalid as error:
            problems += [
                Problem(f"queue {queue.name}: {p.path}", p.message) for p in error.problems
            ]
    return problems


def _check_together(problems: list[Problem], looked_up: _LookedUp, outcomes: list[Outcome]) -> None:
    """Raise the problems that keep any of the submissions from being accepted."""
    for submission, outcome in zip(looked_up.submissions, outcomes, strict=True):
        name = submission.spec.name or "without a name"
        if isinstance(outcome, Invalid):
            problems += [Problem(f"job {name}: {p.path}", p.message) for p in outcome.problems]
        elif isinstance(outcome, CoreError):
            raise outcome
    if problems:
        raise Invalid(problems)
