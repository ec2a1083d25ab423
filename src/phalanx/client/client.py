"""`phalanx.Client`: the HTTP API as methods, which return the structs of `phalanx.wire`.

Given several servers, it finds the leader. Every change carries an idempotency key, so that a
request whose outcome is unknown is repeated without being carried out twice. Threads may share a
client, but not one of its streams.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from phalanx.client import events, logs, lookup, settings
from phalanx.client.errors import ConflictError
from phalanx.client.submission import Submittable, body_of, one_role
from phalanx.client.transport import KEY_HEADER, ApiRequest, Transport
from phalanx.core.model import Phase
from phalanx.tls.pinning import Pin
from phalanx.wire.audit import AuditList, AuditView
from phalanx.wire.cost import CostView
from phalanx.wire.crons import CronView
from phalanx.wire.events import Event
from phalanx.wire.jobs import (
    BatchItem,
    BatchReply,
    JobDetail,
    JobList,
    JobView,
    SubmitReply,
    TaskView,
)
from phalanx.wire.plan import PlanView, Why
from phalanx.wire.policies import PoliciesView, PolicyTestReply
from phalanx.wire.progress import JobProgress
from phalanx.wire.secrets import SecretView
from phalanx.wire.tokens import CreatedToken, TokenView
from phalanx.wire.workers import DrainReply, QueuesReply, QueueView, WorkerView

T = TypeVar("T")

_POLL_S, _MAX_POLL_S = 0.05, 1.0


class Client:
    """A connection to the servers of one cluster.

    Without `servers` and `token`, they are read from the environment or the configuration file.
    `fingerprint` is that of the servers' certificate authority, of which no other is trusted then.
    `timeout_s` limits one response; `patience_s` limits how long to look for a server that leads. A
    change whose outcome is unknown is repeated for at least 30 s.
    """

    def __init__(
        self,
        servers: str | Iterable[str] | None = None,
        token: str | None = None,
        *,
        fingerprint: str | None = None,
        timeout_s: float = 30.0,
        patience_s: float = 30.0,
    ) -> None:
        """Raises ValueError if a server is not a URL, or the configuration file is invalid."""
        loaded = settings.load(servers, token, fingerprint=fingerprint)
        pin = Pin(loaded.fingerprint, loaded.folder) if loaded.fingerprint else None
        self._transport = Transport(loaded.servers, loaded.token, timeout_s, patience_s, pin)
        self.servers = loaded.servers

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def await_takeover(self, seconds: float, on_wait: Callable[[], None]) -> None:
        """From now on, wait at least so long while a standby answers and no server leads. `on_wait`
        is called once for each request that waits."""
        self._transport.takeover_s = seconds
        self._transport.on_takeover = on_wait

    @property
    def patience_s(self) -> float:
        return self._transport.patience_s

    @patience_s.setter
    def patience_s(self, seconds: float) -> None:
        self._transport.patience_s = seconds

    def authorities(self) -> str:
        """The certificates of the cluster's authorities, the latest first, in PEM."""
        return self._transport.send(ApiRequest("GET", "/ca")).text

    # Submitting

    def submit(
        self,
        job: Submittable | None = None,
        *,
        command: str | Sequence[str] | None = None,
        key: str | None = None,
        **fields: Any,
    ) -> SubmitReply:
        """Submit one job: a mapping, a `JobSpec`, the text of a file, or keyword arguments like
        `command=["python", "train.py"], gang=4, resources={"gpu": 1}, name="train"`.

        Submitting again with the same `key` returns the same job, and refuses another job. Without
        a key the client generates one, so that it can retry after a broken connection.
        """
        if job is None and command is not None:
            job = one_role(command, **fields)
        elif job is None or command is not None or fields:
            raise TypeError("pass either a job, or command= and fields of a job")
        return self._submit("/jobs", job, key, SubmitReply)

    def submit_all(
        self, jobs: Sequence[Submittable] | str | bytes, *, key: str | None = None
    ) -> BatchReply:
        """Submit several jobs, or a file with several documents. Each is accepted or refused."""
        return self._submit("/jobs:batch", jobs, key, BatchReply)

    def submit_file(
        self,
        text: str | bytes,
        *,
        key: str | None = None,
        ignore_image: bool = False,
        ignore_unsupported: bool = False,
    ) -> BatchReply:
        """Submit a file in any dialect. If one of its jobs is refused, none is submitted."""
        params = _flags(ignore_image=ignore_image, ignore_unsupported=ignore_unsupported)
        reply = self._submit("/jobs", text, key, dict[str, Any], params)
        if "results" in reply:
            return msgspec.convert(reply, BatchReply)
        if "cron" in reply:
            return BatchReply(1, 0, (BatchItem(cron=msgspec.convert(reply, CronView)),))
        return BatchReply(1, 0, (BatchItem(job=msgspec.convert(reply, SubmitReply)),))

    def plan(
        self, job: Submittable, *, ignore_image: bool = False, ignore_unsupported: bool = False
    ) -> PlanView:
        """What would happen if this job were submitted now. Nothing is stored."""
        body = body_of(job)
        params = _flags(ignore_image=ignore_image, ignore_unsupported=ignore_unsupported)
        headers = {"Content-Type": body.media_type}
        return self._call(PlanView, ApiRequest("POST", "/plan", params, body.content, headers))

    def _submit(
        self,
        path: str,
        job: Submittable | Sequence[Submittable],
        key: str | None,
        kind: type[T],
        params: Mapping[str, str | None] | None = None,
    ) -> T:
        body = body_of(job)
        headers = {"Content-Type": body.media_type}
        if key is not None:
            headers[KEY_HEADER] = key
        request = ApiRequest("POST", path, params or {}, content=body.content, headers=headers)
        return self._call(kind, request)

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
        """The jobs that match, newest first. Pages are fetched when they are needed, so taking the
        first few of many is cheap."""
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
            listed = self._call(JobList, ApiRequest("GET", "/jobs", params))
            yield from listed.jobs
            cursor = listed.cursor

    def find(self, reference: str) -> str:
        """The id of the job with this id, beginning of an id, name, or namespace/name. Raises
        NotFoundError, and InvalidError if several jobs match."""
        return lookup.find(reference, self.jobs)

    def get(self, job: str) -> JobDetail:
        return self._call(JobDetail, ApiRequest("GET", _path("jobs", job)))

    def tasks(self, job: str) -> list[TaskView]:
        return self._call(list[TaskView], ApiRequest("GET", _path("jobs", job, "tasks")))

    def progress(self, job: str) -> JobProgress:
        """The steps and values that the tasks reported last, and the history of each value."""
        return self._call(JobProgress, ApiRequest("GET", _path("jobs", job, "progress")))

    def why(self, job: str) -> Why:
        """Why the job is pending, stopping or ended, in words and as data."""
        return self._call(Why, ApiRequest("GET", _path("jobs", job, "why")))

    def watch(self, job: str, *, timeout_s: float | None = None) -> Iterator[JobDetail]:
        """The job now, and again after every change until it ends.

        Raises TimeoutError if it has not ended after `timeout_s`.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause, last = _POLL_S, None
        while True:
            current = self.get(job)
            if current != last:
                yield current
            if last is None or replace(current, progress=None) != replace(last, progress=None):
                pause = _POLL_S
            if current.finished_at is not None:
                return
            left = _MAX_POLL_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"job {job} is still {current.phase} after {timeout_s} s")
            time.sleep(min(pause, left))
            pause, last = min(pause * 1.5, _MAX_POLL_S), current

    def wait(self, job: str, *, timeout_s: float | None = None) -> JobDetail:
        """Wait until the job has ended, in whatever phase, and return it. Raises TimeoutError."""
        *_, ended = self.watch(job, timeout_s=timeout_s)
        return ended

    def events(self, job: str, *, follow: bool = False) -> Iterator[Event]:
        """The events of a job so far; with `follow`, until it ends. Match on their types, which are
        in `phalanx.core.records`."""
        path = _path("jobs", job, "events")
        if follow:
            return events.followed_events(self._transport, path, job)
        return events.past_events(self._transport, path)

    def stream(self, *, since: int | None = None) -> Iterator[Event]:
        """All events from now on, or after the event number `since`, without end. A `Resync` means
        that some events were missed."""
        return events.stream(self._transport, since)

    def logs(
        self,
        job: str,
        *,
        task: int | str | None = None,
        attempt: int | None = None,
        follow: bool = False,
        tail: int | None = None,
    ) -> Iterator[str]:
        """The output of a job, line by line.

        `task` selects one task, by its number or by role and index (`worker/0`), and `attempt` one
        attempt; the lines of several tasks begin with role and index. `tail` selects the last
        lines. With `follow`, lines are returned until the job, or that attempt, ends.
        """
        params: dict[str, int | str | None] = {"task": task, "attempt": attempt}
        path = _path("jobs", job)
        if follow and attempt is None:
            return logs.followed_output(self._transport, path, params, tail=tail)
        params |= {"tail": tail, "follow": follow or None}
        return logs.printed_output(self._transport, f"{path}/logs", params)

    def cancel(self, job: str) -> JobView:
        """Cancel the job. Cancelling a cancelled job is not an error."""
        try:
            return self._call(JobView, ApiRequest("DELETE", _path("jobs", job)))
        except ConflictError:
            current = self.get(job)
            if current.phase is not Phase.CANCELLED:
                raise
            return current

    def hold(self, job: str) -> JobView:
        """Keep the job from starting until it is released."""
        return self._post(JobView, _path("jobs", job, "hold"))

    def release(self, job: str) -> JobView:
        """Release a job that is on hold."""
        return self._post(JobView, _path("jobs", job, "release"))

    def requeue(self, job: str) -> JobView:
        """Stop the job and put it back in its queue."""
        return self._post(JobView, _path("jobs", job, "requeue"))

    def retry(self, job: str) -> SubmitReply:
        """Submit an ended job again, under a new id."""
        return self._post(SubmitReply, _path("jobs", job, "retry"))

    def set_priority(self, job: str, priority: int) -> JobView:
        return self._send_json("POST", _path("jobs", job, "priority"), JobView, priority=priority)

    # Workers

    def workers(self) -> list[WorkerView]:
        return self._call(list[WorkerView], ApiRequest("GET", "/workers"))

    def cordon(self, worker: str, *, reason: str | None = None) -> WorkerView:
        """Place no new tasks on the worker. Running tasks continue."""
        return self._post(WorkerView, _path("workers", worker, "cordon"), reason=reason)

    def uncordon(self, worker: str) -> WorkerView:
        return self._post(WorkerView, _path("workers", worker, "uncordon"))

    def drain(
        self, worker: str, *, deadline: str | None = None, reason: str | None = None
    ) -> DrainReply:
        """Cordon the worker and evict its tasks: now, or after `deadline` (`2h`)."""
        path = _path("workers", worker, "drain")
        return self._post(DrainReply, path, deadline=deadline, reason=reason)

    def remove_worker(self, worker: str) -> None:
        """Remove the worker. The caller guarantees that none of its tasks is still running."""
        self._transport.send(ApiRequest("DELETE", _path("workers", worker)))

    # Queues

    def queues(self) -> list[QueueView]:
        return self._call(list[QueueView], ApiRequest("GET", "/queues"))

    def queue(self, name: str) -> QueueView:
        return self._call(QueueView, ApiRequest("GET", _path("queues", name)))

    def set_queue(self, name: str, **fields: Any) -> QueueView:
        """Create or replace the queue: `parent`, `weight`, `quota`, `limit`, `priority`, …. Omitted
        fields have their defaults."""
        return self._send_json("PUT", _path("queues", name), QueueView, **fields)

    def apply_queues(
        self, text: str | bytes, *, dry_run: bool = False, ignore_unsupported: bool = False
    ) -> QueuesReply:
        """Create or update all queues of a file, native or Volcano's, or none; with `dry_run`, only
        return the changes."""
        params = {
            "dry_run": "true" if dry_run else None,
            "ignore_unsupported": "true" if ignore_unsupported else None,
        }
        content = text.encode() if isinstance(text, str) else text
        headers = {"Content-Type": "application/yaml"}
        return self._call(
            QueuesReply, ApiRequest("PUT", "/queues", params, content=content, headers=headers)
        )

    def delete_queue(self, name: str) -> None:
        self._transport.send(ApiRequest("DELETE", _path("queues", name)))

    def stop_queue(self, name: str) -> QueueView:
        """Start no more jobs of the queue. Running jobs continue."""
        return self._post(QueueView, _path("queues", name, "stop"))

    def start_queue(self, name: str) -> QueueView:
        return self._post(QueueView, _path("queues", name, "start"))

    # Crons

    def schedule(self, job: Submittable) -> CronView:
        """Create or replace a cron: a job with a name and a `schedule`."""
        return self._submit("/jobs", job, None, CronView)

    def crons(self, *, namespace: str | None = None) -> list[CronView]:
        return self._call(list[CronView], ApiRequest("GET", "/crons", {"namespace": namespace}))

    def cron(self, name: str) -> CronView:
        """The cron with this name, or namespace/name."""
        return self._call(CronView, ApiRequest("GET", _cron_path(name)))

    def pause_cron(self, name: str) -> CronView:
        return self._post(CronView, _cron_path(name) + "/pause")

    def resume_cron(self, name: str) -> CronView:
        return self._post(CronView, _cron_path(name) + "/resume")

    def run_cron(self, name: str) -> CronView:
        """Start a run now. The schedule does not change."""
        return self._post(CronView, _cron_path(name) + "/run")

    def delete_cron(self, name: str) -> None:
        self._transport.send(ApiRequest("DELETE", _cron_path(name)))

    # Tokens

    def tokens(self) -> list[TokenView]:
        """All tokens and the credentials of workers, without their secrets."""
        return self._call(list[TokenView], ApiRequest("GET", "/tokens"))

    def create_token(  # noqa: PLR0913
        self,
        name: str,
        *,
        role: str = "user",
        namespaces: Sequence[str] = (),
        workers: str = "",
        expires: str | None = None,
        joins: int | None = None,
    ) -> CreatedToken:
        """Create a token with the role `user`, `join`, `worker` or `admin`, valid for `expires`
        (`90d`)."""
        fields: dict[str, Any] = {
            "name": name,
            "role": role,
            "namespaces": namespaces or None,
            "workers": workers or None,
            "expires": expires,
            "joins": joins,
        }
        return self._send_json("POST", "/tokens", CreatedToken, is_repeatable=False, **fields)

    def rotate_token(self, name: str) -> CreatedToken:
        """Give a token a new secret. The previous one stays valid until the new one is used."""
        path = _path("tokens", name, "rotate")
        return self._call(CreatedToken, ApiRequest("POST", path, is_repeatable=False))

    def revoke_token(self, name: str) -> None:
        """Revoke a token, or the credential of a worker (`worker:w-1`)."""
        self._transport.send(ApiRequest("DELETE", _path("tokens", name), is_repeatable=False))

    # Secrets

    def secrets(self) -> list[SecretView]:
        """The secrets and the names of their keys, without the values."""
        return self._call(list[SecretView], ApiRequest("GET", "/secrets"))

    def set_secret(
        self, name: str, values: Mapping[str, str], *, namespace: str = "default"
    ) -> SecretView:
        """Set keys of a secret. Its other keys stay as they are."""
        return self._send_json("PUT", _path("secrets", namespace, name), SecretView, data=values)

    def remove_secret(
        self, name: str, keys: Sequence[str] = (), *, namespace: str = "default"
    ) -> None:
        """Remove a secret, or only some of its keys."""
        path = _path("secrets", namespace, name)
        params = {"keys": ",".join(keys)} if keys else {}
        self._transport.send(ApiRequest("DELETE", path, params, is_repeatable=False))

    # Policies

    def policies(self) -> PoliciesView:
        """The policies of the cluster, and the files that they came from."""
        return self._call(PoliciesView, ApiRequest("GET", "/policies"))

    def apply_policies(self, files: Mapping[str, str]) -> PoliciesView:
        """Replace all policies by those of the files. Without files the built-in rules hold."""
        return self._send_json("PUT", "/policies", PoliciesView, files=files)

    def check_policies(self, files: Mapping[str, str]) -> PoliciesView:
        """Check the files as `apply_policies` does, without applying them."""
        return self._send_json("POST", "/policies/check", PoliciesView, files=files)

    def test_policies(
        self, tests: Sequence[Mapping[str, Any]], files: Mapping[str, str] | None = None
    ) -> PolicyTestReply:
        """Compare the answers of policies with those that are expected. Without files, the
        policies of the cluster are tested."""
        return self._send_json("POST", "/policies/test", PolicyTestReply, tests=tests, files=files)

    # Audit

    def audit(  # noqa: PLR0913
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        principal: str | None = None,
        namespace: str | None = None,
        target: str | None = None,
        page: int = 1000,
    ) -> Iterator[AuditView]:
        """Who changed what, from where, newest first. `since` and `until` are times like
        2026-01-31T12:00:00Z. Pages are fetched when they are needed."""
        cursor: str | None = ""
        while cursor is not None:
            params = {
                "since": since,
                "until": until,
                "principal": principal,
                "namespace": namespace,
                "target": target,
                "limit": page,
                "cursor": cursor or None,
            }
            listed = self._call(AuditList, ApiRequest("GET", "/audit", params))
            yield from listed.records
            cursor = listed.cursor

    # Cost

    def cost(self) -> CostView:
        """Work lost to evictions and failures, by queue, job and evictor."""
        return self._call(CostView, ApiRequest("GET", "/cost"))

    # Requests

    def _call(self, kind: type[T], request: ApiRequest) -> T:
        return self._transport.call(kind, request)

    def _post(self, kind: type[T], path: str, **params: str | None) -> T:
        return self._call(kind, ApiRequest("POST", path, params))

    def _send_json(
        self, method: str, path: str, kind: type[T], *, is_repeatable: bool = True, **fields: Any
    ) -> T:
        given: Mapping[str, Any] = {k: v for k, v in fields.items() if v is not None}
        request = ApiRequest(
            method,
            path,
            content=msgspec.json.encode(given),
            headers={"Content-Type": "application/json"},
            is_repeatable=is_repeatable,
        )
        return self._call(kind, request)


def _cron_path(name: str) -> str:
    namespace, slash, short = name.partition("/")
    return _path("crons", namespace, short) if slash else _path("crons", "default", name)


def _path(*parts: str) -> str:
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def _flags(**flags: bool) -> dict[str, str]:
    """The query parameters of the flags that are set."""
    return {name: "true" for name, is_set in flags.items() if is_set}
