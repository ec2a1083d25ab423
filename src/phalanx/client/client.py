"""A client of a cluster: what can be asked of a server, as methods. Answers are the wire's shapes.

It takes a list of servers, remembers the one that leads, and asks again where that is safe. A
client may be shared by threads; one stream of it is for one thread.
"""

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from phalanx.client import events, logs, lookup, settings
from phalanx.client.errors import ConflictError
from phalanx.client.submission import Submittable, body_of, one_role
from phalanx.client.transport import ApiRequest, Transport
from phalanx.core.model import Phase
from phalanx.wire.cost import CostView
from phalanx.wire.crons import CronView
from phalanx.wire.jobs import (
    BatchItem,
    BatchReply,
    JobDetail,
    JobList,
    JobView,
    RecordView,
    SubmitReply,
    TaskView,
)
from phalanx.wire.plan import PlanView, Why
from phalanx.wire.workers import DrainReply, QueuesReply, QueueView, WorkerView

T = TypeVar("T")

_POLL_S, _LONGEST_POLL_S = 0.05, 1.0


class Client:
    """A connection to the servers of one cluster.

    `servers` and `token` come from the environment or the user's file if they are not given.
    `timeout_s` bounds one answer; `patience_s` how long a server is looked for.
    """

    def __init__(
        self,
        servers: str | Iterable[str] | None = None,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        patience_s: float = 30.0,
    ) -> None:
        """Raises ValueError for an address that is none."""
        found = settings.load(servers, token)
        self._servers = Transport(found.servers, found.token, timeout_s, patience_s)
        self.servers = found.servers

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._servers.close()

    @property
    def patience_s(self) -> float:
        return self._servers.patience_s

    @patience_s.setter
    def patience_s(self, seconds: float) -> None:
        self._servers.patience_s = seconds

    # Submitting

    def submit(
        self,
        job: Submittable | None = None,
        *,
        command: str | Sequence[str] | None = None,
        key: str | None = None,
        **fields: Any,
    ) -> SubmitReply:
        """Submit one job: a mapping, a specification, the text of a file, or in short
        `command=["python", "train.py"], gang=4, resources={"gpu": 1}, name="train"`, with any
        other field of a job.

        With the same `key` it is the same job. Without one, asking again after a broken
        connection is still safe: a key is made up for it.
        """
        if job is None and command is not None:
            job = one_role(command, **fields)
        elif job is None or command is not None or fields:
            raise TypeError("give a job, or command= and the fields of one")
        return self._submission("/jobs", job, key, SubmitReply)

    def submit_all(
        self, jobs: Sequence[Submittable] | str | bytes, *, key: str | None = None
    ) -> BatchReply:
        """Submit many jobs, or a file with many documents; each is accepted or refused."""
        return self._submission("/jobs:batch", jobs, key, BatchReply)

    def submit_file(
        self,
        text: str | bytes,
        *,
        key: str | None = None,
        ignore_image: bool = False,
        ignore_unsupported: bool = False,
    ) -> BatchReply:
        """Submit all jobs of a file in any dialect, or none of them if one is refused."""
        params = _flags(ignore_image=ignore_image, ignore_unsupported=ignore_unsupported)
        reply = self._submission("/jobs", text, key, dict[str, Any], params)
        if "results" in reply:
            return msgspec.convert(reply, BatchReply)
        if "cron" in reply:
            return BatchReply(1, 0, (BatchItem(cron=msgspec.convert(reply, CronView)),))
        return BatchReply(1, 0, (BatchItem(job=msgspec.convert(reply, SubmitReply)),))

    def plan(
        self, job: Submittable, *, ignore_image: bool = False, ignore_unsupported: bool = False
    ) -> PlanView:
        """What would happen if this were submitted now. Nothing is kept."""
        body = body_of(job)
        params = _flags(ignore_image=ignore_image, ignore_unsupported=ignore_unsupported)
        headers = {"Content-Type": body.media_type}
        return self._ask(PlanView, ApiRequest("POST", "/plan", params, body.content, headers))

    def _submission(
        self,
        path: str,
        job: Submittable | Sequence[Submittable],
        key: str | None,
        kind: type[T],
        params: Mapping[str, str | None] | None = None,
    ) -> T:
        body = body_of(job)
        headers = {
            "Content-Type": body.media_type,
            "Idempotency-Key": key or uuid.uuid4().hex,
        }
        ask = ApiRequest("POST", path, params or {}, content=body.content, headers=headers)
        return self._ask(kind, ask)

    # Jobs

    def jobs(  # noqa: PLR0913
        self,
        *,
        namespace: str | None = None,
        queue: str | None = None,
        phase: Phase | str | None = None,
        name: str | None = None,
        id_prefix: str | None = None,
        finished: bool | None = None,
        page: int = 1000,
    ) -> Iterator[JobView]:
        """Jobs by creation time, newest first. Pages are fetched as they are needed, so taking the
        first few of many costs little."""
        cursor: str | None = ""
        while cursor is not None:
            params = {
                "namespace": namespace,
                "queue": queue,
                "phase": phase,
                "name": name,
                "id_prefix": id_prefix,
                "finished": finished,
                "limit": page,
                "cursor": cursor or None,
            }
            found = self._ask(JobList, ApiRequest("GET", "/jobs", params))
            yield from found.jobs
            cursor = found.cursor

    def find(self, called: str) -> str:
        """The id of the job that is called so: by its id, the beginning of it, its name, or
        namespace/name. Raises NotFoundError, and InvalidError if that may be several."""
        return lookup.find(called, self.jobs)

    def get(self, job: str) -> JobDetail:
        return self._ask(JobDetail, ApiRequest("GET", _path("jobs", job)))

    def tasks(self, job: str) -> list[TaskView]:
        return self._ask(list[TaskView], ApiRequest("GET", _path("gangs", job)))

    def why(self, job: str) -> Why:
        """Why it waits, in words and as data."""
        return self._ask(Why, ApiRequest("GET", _path("jobs", job, "why")))

    def watch(self, job: str, *, timeout_s: float | None = None) -> Iterator[JobDetail]:
        """The job now, and again whenever it has changed, until it has ended.

        Raises TimeoutError if it has not within `timeout_s`.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause, last = _POLL_S, None
        while True:
            now = self.get(job)
            if now != last:
                yield now
                pause = _POLL_S
            if now.finished_at is not None:
                return
            left = _LONGEST_POLL_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"job {job} is {now.phase} after {timeout_s} s")
            time.sleep(min(pause, left))
            pause, last = min(pause * 1.5, _LONGEST_POLL_S), now

    def wait(self, job: str, *, timeout_s: float | None = None) -> JobDetail:
        """The job when it has ended, however it did. Raises TimeoutError."""
        *_, ended = self.watch(job, timeout_s=timeout_s)
        return ended

    def events(self, job: str, *, follow: bool = False) -> Iterator[RecordView]:
        """The story of a job; with `follow` until it ends."""
        path = _path("jobs", job, "events")
        if follow:
            return events.story(self._servers, path, job)
        return events.pages(self._servers, path)

    def stream(self, *, since: int | None = None) -> Iterator[RecordView]:
        """All that happens, from now or from a number on, without end. A record of the kind
        `resync` says that some were missed."""
        return events.stream(self._servers, since)

    def logs(
        self,
        job: str,
        *,
        task: int | None = None,
        attempt: int | None = None,
        follow: bool = False,
        tail: int | None = None,
    ) -> Iterator[str]:
        """The output of a job, line by line: of one task, or of all with their names before it;
        of one attempt (by its epoch), or of all; from the beginning, or the last lines. With
        `follow` until the job, or that attempt, has ended."""
        params: dict[str, int | None] = {"task": task, "attempt": attempt}
        path = _path("jobs", job)
        if follow and attempt is None:
            return logs.followed(self._servers, path, params, tail=tail)
        params |= {"tail": tail, "follow": follow or None}
        return logs.printed(self._servers, f"{path}/logs", params)

    def cancel(self, job: str) -> JobView:
        """One that is cancelled already stays so, and that is no error."""
        try:
            return self._ask(JobView, ApiRequest("DELETE", _path("jobs", job)))
        except ConflictError:
            found = self.get(job)
            if found.phase is not Phase.CANCELLED:
                raise
            return found

    def hold(self, job: str) -> JobView:
        """Let it not start, or start again, until it is released."""
        return self._do(JobView, _path("jobs", job, "hold"))

    def release(self, job: str) -> JobView:
        """End a hold."""
        return self._do(JobView, _path("jobs", job, "release"))

    def requeue(self, job: str) -> JobView:
        """Stop it, and let it wait again."""
        return self._do(JobView, _path("jobs", job, "requeue"), repeatable=False)

    def retry(self, job: str) -> SubmitReply:
        """Submit one that has ended anew, under a new id."""
        return self._do(SubmitReply, _path("jobs", job, "retry"), repeatable=False)

    def set_priority(self, job: str, priority: int) -> JobView:
        return self._put_json("POST", _path("jobs", job, "priority"), JobView, priority=priority)

    # Workers

    def workers(self) -> list[WorkerView]:
        return self._ask(list[WorkerView], ApiRequest("GET", "/workers"))

    def cordon(self, worker: str, *, reason: str | None = None) -> WorkerView:
        """Place nothing new on it."""
        return self._do(WorkerView, _path("workers", worker, "cordon"), reason=reason)

    def uncordon(self, worker: str) -> WorkerView:
        return self._do(WorkerView, _path("workers", worker, "uncordon"))

    def drain(
        self, worker: str, *, deadline: str | None = None, reason: str | None = None
    ) -> DrainReply:
        """Cordon it, and evict what is on it: at once, or after `deadline` (`2h`)."""
        path = _path("workers", worker, "drain")
        return self._do(DrainReply, path, deadline=deadline, reason=reason)

    def remove_worker(self, worker: str) -> None:
        """Forget it for good. Whoever does so vouches that nothing of its tasks is alive."""
        self._servers.ask(ApiRequest("DELETE", _path("workers", worker), repeatable=False))

    # Queues

    def queues(self) -> list[QueueView]:
        return self._ask(list[QueueView], ApiRequest("GET", "/queues"))

    def queue(self, name: str) -> QueueView:
        return self._ask(QueueView, ApiRequest("GET", _path("queues", name)))

    def set_queue(self, name: str, **fields: Any) -> QueueView:
        """Make or replace it: `parent`, `weight`, `quota`, `limit`, `priority`, …. What is left out
        has its default."""
        return self._put_json("PUT", _path("queues", name), QueueView, **fields)

    def apply_queues(
        self, text: str | bytes, *, dry_run: bool = False, ignore_unsupported: bool = False
    ) -> QueuesReply:
        """Set all queues of a file, ours or Volcano's, or none; what changes, or would."""
        params = {
            "dry_run": "true" if dry_run else None,
            "ignore_unsupported": "true" if ignore_unsupported else None,
        }
        content = text.encode() if isinstance(text, str) else text
        headers = {"Content-Type": "application/yaml"}
        return self._ask(
            QueuesReply, ApiRequest("PUT", "/queues", params, content=content, headers=headers)
        )

    def delete_queue(self, name: str) -> None:
        self._servers.ask(ApiRequest("DELETE", _path("queues", name), repeatable=False))

    def stop_queue(self, name: str) -> QueueView:
        """Let nothing of it start; what runs goes on."""
        return self._do(QueueView, _path("queues", name, "stop"))

    def start_queue(self, name: str) -> QueueView:
        return self._do(QueueView, _path("queues", name, "start"))

    # Crons

    def schedule(self, job: Submittable) -> CronView:
        """Set a cron: submit a job that has a name and a `schedule`. One of the same name is
        replaced."""
        return self._submission("/jobs", job, None, CronView)

    def crons(self, *, namespace: str | None = None) -> list[CronView]:
        return self._ask(list[CronView], ApiRequest("GET", "/crons", {"namespace": namespace}))

    def cron(self, called: str) -> CronView:
        """By its name, or namespace/name."""
        return self._ask(CronView, ApiRequest("GET", _cron_path(called)))

    def pause_cron(self, called: str) -> CronView:
        return self._do(CronView, _cron_path(called) + "/pause")

    def resume_cron(self, called: str) -> CronView:
        return self._do(CronView, _cron_path(called) + "/resume")

    def run_cron(self, called: str) -> CronView:
        """Start a run now."""
        return self._do(CronView, _cron_path(called) + "/run", repeatable=False)

    def delete_cron(self, called: str) -> None:
        self._servers.ask(ApiRequest("DELETE", _cron_path(called), repeatable=False))

    # Cost

    def cost(self) -> CostView:
        """What evictions and failures have cost, by queue, job and evictor."""
        return self._ask(CostView, ApiRequest("GET", "/cost"))

    # Asking

    def _ask(self, kind: type[T], ask: ApiRequest) -> T:
        return msgspec.json.decode(self._servers.ask(ask).content, type=kind)

    def _do(self, kind: type[T], path: str, *, repeatable: bool = True, **params: str | None) -> T:
        return self._ask(kind, ApiRequest("POST", path, params, repeatable=repeatable))

    def _put_json(self, method: str, path: str, kind: type[T], **fields: Any) -> T:
        given: Mapping[str, Any] = {k: v for k, v in fields.items() if v is not None}
        headers = {"Content-Type": "application/json"}
        return self._ask(
            kind, ApiRequest(method, path, content=msgspec.json.encode(given), headers=headers)
        )


def _cron_path(called: str) -> str:
    namespace, slash, name = called.partition("/")
    return _path("crons", namespace, name) if slash else _path("crons", "default", called)


def _path(*parts: str) -> str:
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def _flags(**flags: bool) -> dict[str, str]:
    """Those that are set, as a query has them."""
    return {name: "true" for name, is_set in flags.items() if is_set}
