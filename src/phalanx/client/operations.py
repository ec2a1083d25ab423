"""The HTTP API as methods, which return the structs of `phalanx.wire`.

They are written once, as coroutines. `AsyncClient` is this class; `Client` runs each coroutine to
its end, on a transport that blocks. Every change carries an idempotency key, so that a request
whose outcome is unknown is repeated without being carried out twice.
"""

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from difflib import get_close_matches
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from phalanx.client import events, logs, lookup
from phalanx.client.errors import ConflictError, InvalidError
from phalanx.client.lookup import JobReference
from phalanx.client.settings import ClientSettings
from phalanx.client.submission import (
    Submittable,
    body_of,
    is_local,
    is_of_fields,
    json_text,
    one_role,
)
from phalanx.client.transport import KEY_HEADER, ApiRequest, Http, OnWait, Transport
from phalanx.core.ids import split_element
from phalanx.core.model import ENDED, Phase
from phalanx.tls.pinning import Pin
from phalanx.wire.audit import AuditList, AuditView
from phalanx.wire.cost import CostView
from phalanx.wire.crons import CronView
from phalanx.wire.errors import ErrorDetail, ErrorInfo
from phalanx.wire.events import Event
from phalanx.wire.identity import Identity
from phalanx.wire.jobs import (
    BatchItem,
    BatchReply,
    ElementList,
    ElementView,
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
from phalanx.wire.servers import ServersView
from phalanx.wire.tokens import CreatedToken, TokenView
from phalanx.wire.workers import DrainReply, QueuesReply, QueueView, WorkerView

T = TypeVar("T")

_POLL_S, _MAX_POLL_S = 0.05, 1.0
_OVERRIDE_HEADER = "Phalanx-Override"


class Operations:
    """What a client can do with the servers of one cluster."""

    def __init__(
        self, loaded: ClientSettings, http: Http, *, timeout_s: float, patience_s: float
    ) -> None:
        pin = Pin(loaded.fingerprint, loaded.folder) if loaded.fingerprint else None
        self._transport = Transport(http, loaded.servers, loaded.token, timeout_s, patience_s, pin)
        self.servers = loaded.servers
        #: The namespace of jobs, crons and secrets that name none; None until the server says it.
        self._namespace = loaded.namespace

    async def close(self) -> None:
        await self._transport.close()

    def await_takeover(self, seconds: float, on_wait: OnWait) -> None:
        """From now on, wait at least so long while a standby answers and no server leads. `on_wait`
        is called once for each request that waits, with whether it waits for a standby."""
        self._transport.takeover_s = seconds
        self._transport.on_wait = on_wait

    @property
    def silent_s(self) -> float:
        """For how long no server has served a request; 0 if the last one was served."""
        return self._transport.silent_s

    @property
    def patience_s(self) -> float:
        return self._transport.patience_s

    @patience_s.setter
    def patience_s(self, seconds: float) -> None:
        self._transport.patience_s = seconds

    # The caller

    async def whoami(self) -> Identity:
        """The name, the role and the namespaces of the token."""
        return await self._call(Identity, ApiRequest("GET", "/whoami"))

    async def default_namespace(self) -> str:
        """The namespace of jobs, crons and secrets that name none: the one of the settings, the
        only one of the token, or `default`."""
        if self._namespace is None:
            self._namespace = (await self.whoami()).namespace
        return self._namespace

    async def authorities(self) -> str:
        """The certificates of the cluster's authorities, the latest first, in PEM."""
        return (await self._transport.send(ApiRequest("GET", "/ca"))).text

    async def leader_and_standbys(self) -> ServersView:
        """The servers of the cluster that the server knows of; also those that are not in
        `servers`."""
        return await self._call(ServersView, ApiRequest("GET", "/servers"))

    # Submitting

    async def submit(
        self,
        /,
        job: Submittable | None = None,
        *,
        command: str | Sequence[str] | None = None,
        key: str | None = None,
        **fields: Any,
    ) -> SubmitReply:
        """Submit one job: keyword arguments like `command=["python", "train.py"], gang=4,
        resources={"gpu": 1}, after=[other]`, a mapping with the same fields or in the native form,
        a `JobSpec`, or the text of a file.

        Submitting again with the same `key` returns the same job, and refuses another job. Without
        a key the client generates one, so that it can retry after a broken connection.
        """
        if job is None and command is not None:
            job = {"command": command, **fields}
        elif job is None or command is not None or fields:
            near = get_close_matches("command", fields, n=1)
            meant = f"; did you mean command= by {near[0]}=?" if near and command is None else ""
            raise TypeError(f"pass either a job, or command= and fields of a job{meant}")
        return await self._submit("/jobs", self._native(job), key, SubmitReply)

    async def submit_all(
        self, jobs: Sequence[Submittable] | str | bytes, *, key: str | None = None
    ) -> BatchReply:
        """Submit several jobs, each in a form that `submit` takes, or a file with several
        documents. Each is accepted or refused."""
        listed = jobs if isinstance(jobs, str | bytes) else [self._native(job) for job in jobs]
        return await self._submit("/jobs:batch", listed, key, BatchReply)

    async def submit_file(
        self,
        text: str | bytes,
        *,
        key: str | None = None,
        ignore_image: bool = False,
        ignore_unsupported: bool = False,
        overrides: Mapping[str, Any] | None = None,
    ) -> BatchReply:
        """Submit a file in any dialect. If one of its jobs is refused, none is submitted.
        `overrides` are fields like those of `submit`, which replace those of the file."""
        params = _flags(ignore_image=ignore_image, ignore_unsupported=ignore_unsupported)
        reply = await self._submit("/jobs", text, key, dict[str, Any], params, overrides)
        if "results" in reply:
            return msgspec.convert(reply, BatchReply)
        if "cron" in reply:
            return BatchReply(1, 0, (BatchItem(cron=msgspec.convert(reply, CronView)),))
        return BatchReply(1, 0, (BatchItem(job=msgspec.convert(reply, SubmitReply)),))

    async def plan(
        self,
        job: Submittable,
        *,
        ignore_image: bool = False,
        ignore_unsupported: bool = False,
        overrides: Mapping[str, Any] | None = None,
    ) -> PlanView:
        """What would happen if this job were submitted now. Nothing is stored."""
        params = _flags(ignore_image=ignore_image, ignore_unsupported=ignore_unsupported)
        return await self._submit("/plan", self._native(job), None, PlanView, params, overrides)

    def _native(self, job: Submittable) -> Submittable:
        """A job that is given by the fields of `submit` in the native form. If the servers run on
        this machine, its working directory is the current one."""
        if not isinstance(job, Mapping) or not is_of_fields(job):
            return job
        return one_role(**job, is_local=all(map(is_local, self.servers)))

    async def _submit(  # noqa: PLR0913, PLR0917
        self,
        path: str,
        job: Submittable | Sequence[Submittable],
        key: str | None,
        kind: type[T],
        params: Mapping[str, str | None] | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> T:
        body = body_of(job)
        headers = {"Content-Type": body.media_type}
        if key is not None:
            headers[KEY_HEADER] = key
        if overrides:
            headers[_OVERRIDE_HEADER] = json_text(overrides)
        query = {"namespace": self._namespace, **(params or {})}
        return await self._call(kind, ApiRequest("POST", path, query, body.content, headers))

    # Jobs

    async def jobs(  # noqa: PLR0913
        self,
        *,
        namespace: str | None = None,
        queue: str | None = None,
        phase: Phase | str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        id_prefix: str | None = None,
        finished: bool | None = None,
        page: int = 1000,
    ) -> AsyncGenerator[JobView, None]:
        """The jobs that match, newest first. Pages are fetched when they are needed, so taking the
        first few of many is cheap."""
        cursor: str | None = ""
        while cursor is not None:
            params = {
                "namespace": namespace,
                "queue": queue,
                "phase": phase,
                "name": name,
                "name_contains": name_contains,
                "id_prefix": id_prefix,
                "finished": finished,
                "limit": page,
                "cursor": cursor or None,
            }
            listed = await self._call(JobList, ApiRequest("GET", "/jobs", params))
            for job in listed.jobs:
                yield job
            cursor = listed.cursor

    async def find(self, reference: JobReference) -> str:
        """The id of the job with this id, beginning of an id, name, or namespace/name. Raises
        NotFoundError, and InvalidError if several jobs match."""
        return await lookup.find(reference, self.jobs)

    async def get(self, job: JobReference) -> JobDetail:
        return await self._call(JobDetail, ApiRequest("GET", await self._job_path(job)))

    async def elements(
        self,
        array: JobReference,
        *,
        phase: Phase | str | None = None,
        never_ran: bool | None = None,
        page: int = 1000,
    ) -> AsyncGenerator[ElementView, None]:
        """The elements of an array in its order, or those in one phase. `never_ran` selects those
        that ended without an attempt, or the others. Pages are fetched when they are needed."""
        path = await self._job_path(array, "elements")
        cursor: str | None = ""
        while cursor is not None:
            params = {
                "phase": phase,
                "never_ran": never_ran,
                "limit": page,
                "cursor": cursor or None,
            }
            listed = await self._call(ElementList, ApiRequest("GET", path, params))
            for element in listed.elements:
                yield element
            cursor = listed.cursor

    async def tasks(self, job: JobReference) -> list[TaskView]:
        return await self._call(
            list[TaskView], ApiRequest("GET", await self._job_path(job, "tasks"))
        )

    async def progress(self, job: JobReference) -> JobProgress:
        """The steps and values that the tasks reported last, and the history of each value."""
        return await self._call(
            JobProgress, ApiRequest("GET", await self._job_path(job, "progress"))
        )

    async def why(self, job: JobReference) -> Why:
        """Why the job is pending, stopping or ended, in words and as data."""
        return await self._call(Why, ApiRequest("GET", await self._job_path(job, "why")))

    async def watch(
        self, job: JobReference, *, timeout_s: float | None = None
    ) -> AsyncGenerator[JobDetail, None]:
        """The job now, and again after every change until it ends.

        Raises TimeoutError if it has not ended after `timeout_s`.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause, last = _POLL_S, None
        job = await self.find(job)
        while True:
            current = await self.get(job)
            if current != last:
                yield current
            if last is None or replace(current, progress=None) != replace(last, progress=None):
                pause = _POLL_S
            if _is_over(current):
                return
            left = _MAX_POLL_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"job {job} is still {current.phase} after {timeout_s} s")
            await self._transport.pause(min(pause, left))
            pause, last = min(pause * 1.5, _MAX_POLL_S), current

    async def wait(self, job: JobReference, *, timeout_s: float | None = None) -> JobDetail:
        """Wait until the job has ended, in whatever phase, and return it. Raises TimeoutError."""
        async with aclosing(self.watch(job, timeout_s=timeout_s)) as changes:
            async for seen in changes:
                if _is_over(seen):
                    return seen
        raise AssertionError("bug: a watch ended before its job")

    async def events(
        self, job: JobReference, *, follow: bool = False
    ) -> AsyncGenerator[Event, None]:
        """The events of a job so far; with `follow`, until it ends. Match on their types, which are
        in `phalanx.core.records`."""
        job = await self.find(job)
        path = _path("jobs", job, "events")
        listed = (
            events.followed_events(self._transport, path, job)
            if follow
            else events.past_events(self._transport, path)
        )
        async with aclosing(listed):
            async for event in listed:
                yield event

    async def stream(self, *, since: int | None = None) -> AsyncGenerator[Event, None]:
        """All events from now on, or after the event number `since`, without end. A `Resync` means
        that some events were missed."""
        async with aclosing(events.stream(self._transport, since)) as listed:
            async for event in listed:
                yield event

    async def logs(
        self,
        job: JobReference,
        *,
        task: int | str | None = None,
        attempt: int | None = None,
        follow: bool = False,
        tail: int | None = None,
    ) -> AsyncGenerator[str, None]:
        """The output of a job, line by line.

        `task` selects one task, by its number or by role and index (`worker/0`), and `attempt` one
        attempt; the lines of several tasks begin with role and index. `tail` selects the last
        lines. With `follow`, lines are returned until the job, or that attempt, ends.
        """
        params: dict[str, int | str | None] = {"task": task, "attempt": attempt}
        path = await self._job_path(job)
        if follow and attempt is None:
            lines = logs.followed_output(self._transport, path, params, tail=tail)
        else:
            params |= {"tail": tail, "follow": follow or None}
            lines = logs.printed_output(self._transport, f"{path}/logs", params)
        async with aclosing(lines):
            async for line in lines:
                yield line

    async def cancel(self, job: JobReference) -> JobView:
        """Cancel the job, or elements of an array: `sweep[3-5]`. Cancelling a cancelled job is not
        an error."""
        job = await self.find(job)
        element = split_element(job)
        if element is not None:
            path, params = _path("jobs", element[0]), {"elements": element[1]}
            return await self._call(JobView, ApiRequest("DELETE", path, params))
        try:
            return await self._call(JobView, ApiRequest("DELETE", _path("jobs", job)))
        except ConflictError:
            current = await self.get(job)
            if current.phase is not Phase.CANCELLED:
                raise
            return current

    async def hold(self, job: JobReference) -> JobView:
        """Keep the job from starting until it is released."""
        return await self._post(JobView, await self._job_path(job, "hold"))

    async def release(self, job: JobReference) -> JobView:
        """Release a job that is on hold."""
        return await self._post(JobView, await self._job_path(job, "release"))

    async def requeue(self, job: JobReference) -> JobView:
        """Stop the job and put it back in its queue."""
        return await self._post(JobView, await self._job_path(job, "requeue"))

    async def retry(self, job: JobReference, *, failed: bool = False) -> JobView:
        """Submit an ended job again, under a new id.

        With `failed`, the elements of an array that ended without success run again, and elements
        that are named do: `sweep[3-5]`. The array keeps its id, and continues if it has ended.
        """
        job = await self.find(job)
        array, elements = split_element(job) or (job, None)
        params = {"failed": "true" if failed else None, "elements": elements}
        return await self._post(JobView, _path("jobs", array, "retry"), **params)

    async def set_priority(self, job: JobReference, priority: int) -> JobView:
        return await self._send_json(
            "POST", await self._job_path(job, "priority"), JobView, priority=priority
        )

    # Workers

    async def workers(self) -> list[WorkerView]:
        return await self._call(list[WorkerView], ApiRequest("GET", "/workers"))

    async def cordon(self, worker: str, *, reason: str | None = None) -> WorkerView:
        """Place no new tasks on the worker. Running tasks continue."""
        return await self._post(WorkerView, _path("workers", worker, "cordon"), reason=reason)

    async def uncordon(self, worker: str) -> WorkerView:
        return await self._post(WorkerView, _path("workers", worker, "uncordon"))

    async def drain(
        self, worker: str, *, deadline: str | None = None, reason: str | None = None
    ) -> DrainReply:
        """Cordon the worker and evict its tasks: now, or after `deadline` (`2h`)."""
        path = _path("workers", worker, "drain")
        return await self._post(DrainReply, path, deadline=deadline, reason=reason)

    async def remove_worker(self, worker: str) -> None:
        """Remove the worker. The caller guarantees that none of its tasks is still running."""
        await self._transport.send(ApiRequest("DELETE", _path("workers", worker)))

    # Queues

    async def queues(self, *, usage: bool = False) -> list[QueueView]:
        """The queues; with `usage`, each with what it uses, its fair share and its jobs."""
        request = ApiRequest("GET", "/queues", _flags(usage=usage))
        return await self._call(list[QueueView], request)

    async def queue(self, name: str) -> QueueView:
        return await self._call(QueueView, ApiRequest("GET", _path("queues", name)))

    async def set_queue(self, /, name: str, **fields: Any) -> QueueView:
        """Create or replace the queue: `parent`, `weight`, `quota`, `limit`, `priority`, …. Omitted
        fields have their defaults."""
        return await self._send_json("PUT", _path("queues", name), QueueView, **fields)

    async def apply_queues(
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
        return await self._call(
            QueuesReply, ApiRequest("PUT", "/queues", params, content=content, headers=headers)
        )

    async def delete_queue(self, name: str) -> None:
        await self._transport.send(ApiRequest("DELETE", _path("queues", name)))

    async def stop_queue(self, name: str) -> QueueView:
        """Start no more jobs of the queue. Running jobs continue."""
        return await self._post(QueueView, _path("queues", name, "stop"))

    async def start_queue(self, name: str) -> QueueView:
        return await self._post(QueueView, _path("queues", name, "start"))

    # Crons

    async def schedule(self, job: Submittable) -> CronView:
        """Create or replace a cron: a job with a name and a `schedule`."""
        return await self._submit("/jobs", job, None, CronView)

    async def crons(self, *, namespace: str | None = None) -> list[CronView]:
        return await self._call(
            list[CronView], ApiRequest("GET", "/crons", {"namespace": namespace})
        )

    async def cron(self, name: str) -> CronView:
        """The cron with this name, or namespace/name."""
        return await self._call(CronView, ApiRequest("GET", await self._cron_path(name)))

    async def pause_cron(self, name: str) -> CronView:
        return await self._post(CronView, await self._cron_path(name) + "/pause")

    async def resume_cron(self, name: str) -> CronView:
        return await self._post(CronView, await self._cron_path(name) + "/resume")

    async def run_cron(self, name: str) -> CronView:
        """Start a run now. The schedule does not change."""
        return await self._post(CronView, await self._cron_path(name) + "/run")

    async def delete_cron(self, name: str) -> None:
        await self._transport.send(ApiRequest("DELETE", await self._cron_path(name)))

    # Tokens

    async def tokens(self) -> list[TokenView]:
        """All tokens and the credentials of workers, without their secrets."""
        return await self._call(list[TokenView], ApiRequest("GET", "/tokens"))

    async def create_token(  # noqa: PLR0913
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
        return await self._send_json("POST", "/tokens", CreatedToken, is_repeatable=False, **fields)

    async def rotate_token(self, name: str) -> CreatedToken:
        """Give a token a new secret. The previous one stays valid until the new one is used."""
        path = _path("tokens", name, "rotate")
        return await self._call(CreatedToken, ApiRequest("POST", path, is_repeatable=False))

    async def revoke_token(self, name: str) -> None:
        """Revoke a token, or the credential of a worker (`worker:w-1`)."""
        await self._transport.send(ApiRequest("DELETE", _path("tokens", name), is_repeatable=False))

    # Secrets

    async def secrets(self) -> list[SecretView]:
        """The secrets and the names of their keys, without the values."""
        return await self._call(list[SecretView], ApiRequest("GET", "/secrets"))

    async def set_secret(
        self, name: str, values: Mapping[str, str], *, namespace: str | None = None
    ) -> SecretView:
        """Set keys of a secret. Its other keys stay as they are."""
        path = _path("secrets", namespace or await self.default_namespace(), name)
        return await self._send_json("PUT", path, SecretView, data=values)

    async def remove_secret(
        self, name: str, keys: Sequence[str] = (), *, namespace: str | None = None
    ) -> None:
        """Remove a secret, or only some of its keys."""
        path = _path("secrets", namespace or await self.default_namespace(), name)
        params = {"keys": ",".join(keys)} if keys else {}
        await self._transport.send(ApiRequest("DELETE", path, params, is_repeatable=False))

    # Policies

    async def policies(self) -> PoliciesView:
        """The policies of the cluster, and the files that they came from."""
        return await self._call(PoliciesView, ApiRequest("GET", "/policies"))

    async def apply_policies(self, files: Mapping[str, str]) -> PoliciesView:
        """Replace all policies by those of the files. Without files the built-in rules hold."""
        return await self._send_json("PUT", "/policies", PoliciesView, files=files)

    async def check_policies(self, files: Mapping[str, str]) -> PoliciesView:
        """Check the files as `apply_policies` does, without applying them."""
        return await self._send_json("POST", "/policies/check", PoliciesView, files=files)

    async def test_policies(
        self, tests: Sequence[Mapping[str, Any]], files: Mapping[str, str] | None = None
    ) -> PolicyTestReply:
        """Compare the answers of policies with those that are expected. Without files, the
        policies of the cluster are tested."""
        return await self._send_json(
            "POST", "/policies/test", PolicyTestReply, tests=tests, files=files
        )

    # Audit

    async def audit(  # noqa: PLR0913
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        principal: str | None = None,
        namespace: str | None = None,
        target: str | None = None,
        page: int = 1000,
    ) -> AsyncGenerator[AuditView, None]:
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
            listed = await self._call(AuditList, ApiRequest("GET", "/audit", params))
            for record in listed.records:
                yield record
            cursor = listed.cursor

    # Cost

    async def cost(self) -> CostView:
        """Work lost to evictions and failures, by queue, job and evictor."""
        return await self._call(CostView, ApiRequest("GET", "/cost"))

    # Requests

    async def _call(self, kind: type[T], request: ApiRequest) -> T:
        return await self._transport.call(kind, request)

    async def _job_path(self, job: JobReference, *parts: str) -> str:
        return _path("jobs", await self.find(job), *parts)

    async def _cron_path(self, name: str) -> str:
        namespace, slash, short = name.partition("/")
        if slash:
            return _path("crons", namespace, short)
        return _path("crons", await self.default_namespace(), name)

    async def _post(self, kind: type[T], path: str, **params: str | None) -> T:
        return await self._call(kind, ApiRequest("POST", path, params))

    async def _send_json(
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
        return await self._call(kind, request)


def _path(kind: str, *parts: str) -> str:
    """The path of an object. Raises InvalidError for a name that no path can have."""
    for part in parts:
        if not part or "/" in part or part in (".", ".."):
            problem = f"is {part!r}; a name is not empty and has no '/'"
            detail = ErrorDetail(kind.removesuffix("s"), problem)
            raise InvalidError(400, ErrorInfo("invalid", f"{detail.path} {problem}", (detail,)))
    return "".join(f"/{quote(part, safe='')}" for part in (kind, *parts))


def _is_over(job: JobDetail) -> bool:
    """Whether a job has ended with all its tasks. An element that never ran has no tasks."""
    return job.finished_at is not None or (job.phase in ENDED and not job.attempt)


def _flags(**flags: bool) -> dict[str, str]:
    """The query parameters of the flags that are set."""
    return {name: "true" for name, is_set in flags.items() if is_set}
