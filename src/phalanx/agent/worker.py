"""The worker's process: one link on one spawner, until it receives SIGTERM.

A spawner that dies is replaced. Its tasks are gone, and the server learns so from the new one.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvloop

from phalanx.agent.credential import CredentialError, CredentialFile
from phalanx.agent.first_contact import pinned_authorities
from phalanx.agent.link.controller import AttemptController
from phalanx.agent.link.leader_client import LeaderClient
from phalanx.agent.link.membership import Membership
from phalanx.agent.link.spawner_client import SpawnerClient
from phalanx.agent.link.sync_loop import CredentialRevoked, Link, Registration, Superseded
from phalanx.agent.link.task_policy import TaskPolicy
from phalanx.agent.messages import AttemptKey, QuitWhenIdle, SpawnerSnapshot, StopAll
from phalanx.agent.process_isolation import isolate_process, remove_credentials
from phalanx.agent.process_lock import ProcessLock, holder_pid
from phalanx.agent.shutdown import ShutdownSignals, WorkerShutdown
from phalanx.agent.state_dir import StateDir
from phalanx.agent.task_users import UserRefused, check_policy
from phalanx.agent.tls_identity import TlsIdentity
from phalanx.core.model import Limit
from phalanx.tls.pinning import FingerprintMismatch, Pin

Logger = structlog.typing.FilteringBoundLogger

#: Sequence numbers grow from one link to the next; each link of a spawner has this many.
_SEQ_PER_LINK = 1_000_000_000


class WorkerStartError(Exception):
    """The worker cannot start; the message says why and what to do."""


class WorkerSettings(msgspec.Struct, frozen=True):
    servers: tuple[str, ...]
    state_dir: Path
    registration: Registration
    keep: bool = False
    fingerprint: str | None = None  #: of the only certificate authority that is trusted
    join_token: Callable[[], str | None] = lambda: None
    tasks: TaskPolicy = TaskPolicy()


def run(settings: WorkerSettings) -> int:
    """Run a worker until a signal stops it; return its exit status. Raises WorkerStartError."""
    state_dir = StateDir(settings.state_dir)
    try:
        isolate_process()
        remove_credentials()
        check_policy(settings.tasks.users, state_dir.path)
        state_dir.create(for_users=settings.tasks.users.is_set)
        lock = ProcessLock.acquire(state_dir.link_lock)
    except UserRefused as error:
        raise WorkerStartError(str(error)) from None
    except OSError as error:
        raise WorkerStartError(
            f"cannot use the state directory {settings.state_dir}: {error}"
        ) from error
    if lock is None:
        raise WorkerStartError(
            f"another worker (process {holder_pid(state_dir.link_lock)}) uses the state directory"
            f" {settings.state_dir}; choose another one with --state-dir"
        )
    try:
        tls = _tls(settings, state_dir)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(WorkerProcess(settings, state_dir, tls).run())
    finally:
        lock.release()


def _tls(settings: WorkerSettings, state_dir: StateDir) -> TlsIdentity | None:
    """The worker's side of TLS; None without it. Waits until a server can be pinned.

    Raises WorkerStartError.
    """
    if not any(url.startswith("https:") for url in settings.servers):
        return None
    if settings.fingerprint is None:
        return TlsIdentity(state_dir.certificate_file)
    pin = Pin(settings.fingerprint, state_dir.path)
    try:
        trusted = pinned_authorities(pin, settings.servers)
    except FingerprintMismatch as error:
        raise WorkerStartError(str(error)) from error
    return TlsIdentity(state_dir.certificate_file, pin, trusted)


class WorkerProcess:
    def __init__(
        self, settings: WorkerSettings, state_dir: StateDir, tls: TlsIdentity | None
    ) -> None:
        self._settings = settings
        self._state_dir = state_dir
        self._log: Logger = structlog.get_logger().bind()
        try:
            self._membership = Membership(
                settings.registration.id,
                CredentialFile(state_dir.credential_file),
                settings.join_token,
                tls,
            )
        except CredentialError as error:
            raise WorkerStartError(str(error)) from None
        context = None if tls is None else tls.context
        self._server = LeaderClient(settings.servers, self._membership.bearer, context)
        self._signals = ShutdownSignals()

    async def run(self) -> int:
        """Run links until a signal stops the worker; return the exit status."""
        self._signals.install()
        try:
            while True:
                spawner = await SpawnerClient.connect(self._state_dir)
                status = await self._run_link(spawner)
                spawner.close()
                if status is not None:
                    return status
                self._log.error("spawner died", action="starting a new one")
        finally:
            self._server.close()

    async def _run_link(self, spawner: SpawnerClient) -> int | None:
        """Run until shutdown and return the exit status, or None if the spawner died."""
        messages = spawner.messages()
        snapshot = await anext(messages, None)
        if not isinstance(snapshot, SpawnerSnapshot):
            return None
        registration = msgspec.structs.replace(
            self._settings.registration,
            incarnation=snapshot.incarnation,
            limits=tuple(limit for limit in Limit if limit not in snapshot.unenforced),
        )
        controller = AttemptController(
            registration.id,
            spawner,
            self._state_dir,
            self._server,
            self._settings.tasks,
            snapshot.control_group,
        )
        for path in self._leftovers({status.key for status in snapshot.attempts}):
            controller.trash.put(path)
        controller.remove_secrets_except([status.key for status in snapshot.attempts])
        controller.update(snapshot.attempts)
        first_seq = snapshot.link_count * _SEQ_PER_LINK
        link = Link(
            self._server, self._membership, registration, controller, self._state_dir, first_seq
        )
        self._log_start(registration, snapshot)
        shutdown = WorkerShutdown(spawner, controller, link)

        async def receive() -> None:
            async for message in messages:
                controller.update(message.attempts)

        works: dict[str, Coroutine[Any, Any, Any]] = {
            "spawner": receive(),
            "link": link.run(),
            "credential": self._membership.keep_renewing(self._server),
            "lease": controller.lease.run(),
            "logs": controller.logs.run(),
            "progress": controller.progress.run(),
            "trash": controller.trash.run(),
            "shutdown": shutdown.run(self._signals, keep=self._settings.keep),
        }
        if controller.containers is not None:
            live = [status.key for status in snapshot.attempts if not status.has_ended]
            works["containers"] = controller.containers.store.run(live)
        tasks = {name: asyncio.create_task(work, name=name) for name, work in works.items()}
        try:
            await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            return await self._exit_status(tasks, spawner)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
            controller.trash.remove_rest()
            if controller.containers is not None:
                controller.containers.store.remove_rest()

    def _leftovers(self, known: set[AttemptKey]) -> list[Path]:
        try:
            self._state_dir.create(for_users=self._settings.tasks.users.is_set)
            return self._state_dir.leftovers(known)
        except OSError as error:
            self._log.warning("cannot clean up the state directory", error=str(error))
            return []

    def _log_start(self, registration: Registration, snapshot: SpawnerSnapshot) -> None:
        self._log.info(
            "worker started",
            worker=registration.id,
            tasks=len(snapshot.attempts),
            limits=", ".join(registration.limits) or "none",
        )
        self._log_users()
        if isinstance(self._settings.tasks.containers, str):
            self._log.info("runs no container images", reason=self._settings.tasks.containers)
        for limit, why in snapshot.unenforced.items():
            self._log.warning("limit not enforced", limit=limit, reason=why)

    def _log_users(self) -> None:
        if self._settings.tasks.users.is_set:
            self._log.info("tasks run as the users of their namespaces")
        elif os.geteuid() == 0:
            cure = "give namespaces users of their own with --task-user or --task-uids"
            self._log.warning("tasks run as root", action=cure)
        else:
            self._log.info("tasks run as the user of the worker", uid=os.geteuid())

    async def _exit_status(
        self, tasks: dict[str, "asyncio.Task[Any]"], spawner: SpawnerClient
    ) -> int | None:
        """The exit status, or None to continue with a new spawner; raises what a task raised."""
        done = {name: task for name, task in tasks.items() if task.done()}
        if "shutdown" in done:
            done["shutdown"].result()
            return 0
        error = done["link"].exception() if "link" in done else None
        if isinstance(error, Superseded | CredentialRevoked):
            is_revoked = isinstance(error, CredentialRevoked)
            event = "credential revoked" if is_revoked else "worker superseded"
            self._log.error(event, error=str(error), action="killing the tasks and exiting")
            spawner.send(StopAll(kill=True), QuitWhenIdle())
            await tasks["spawner"]  # it closes the connection when its last task has ended
            return 1
        if "spawner" in done:
            done["spawner"].result()
            return None
        for task in done.values():
            task.result()
        raise AssertionError(f"bug: {', '.join(done)} ended without an error")
