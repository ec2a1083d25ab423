"""The attempts of a worker between server and spawner: orders go down, reports come up.

Whatever an order needs is fetched first; whatever an end leaves is brought to safety first.
"""

import asyncio
import os
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

import structlog

from phalanx.agent.link.checkpoints import Checkpoints, Refused
from phalanx.agent.link.leader_client import LeaderClient, Unreachable
from phalanx.agent.link.log_shipping import Shipper
from phalanx.agent.link.progress import ProgressFile
from phalanx.agent.link.reports import UnsentReports, report_of
from phalanx.agent.link.spawner_client import SpawnerClient
from phalanx.agent.messages import ForgetAttempt, Key, Lease, Life, RunAttempt, StopAttempt
from phalanx.agent.state_dir import StateDir
from phalanx.core.spec.job import Micros
from phalanx.wire.sync import Reported, TaskInstruction, TaskReport, TaskSpec, Want

Logger = structlog.typing.FilteringBoundLogger

#: Reports of a moment travel together.
_COALESCE_S = 0.005
_PROGRESS_S = 0.5
_AGAIN_S = 0.5


_NO_RUNTIME = "this worker has no container runtime; take the label runtime from it"


class AttemptController:
    def __init__(
        self,
        worker: str,
        owner: SpawnerClient,
        places: StateDir,
        servers: LeaderClient,
        log: Logger,
    ) -> None:
        self.reports = UnsentReports()
        self.news = asyncio.Event()  #: there is something to report
        self.changed = asyncio.Event()  #: something happened to an attempt
        self.shipper = Shipper(servers, places, worker, self._shipped)
        self._owner = owner
        self._places = places
        self._checkpoints = Checkpoints(servers, places)
        self._log = log
        self._lives: dict[Key, Life] = {}
        self._sent: set[Key] = set()  #: the spawner was told to run them
        self._variables: dict[Key, dict[str, str]] = {}  #: of those that are prepared
        self._errands: dict[Key, asyncio.Task[None]] = {}
        self._progress: dict[Key, ProgressFile] = {}
        self._forgotten: set[Key] = set()  #: by the server; we still ship their output
        self._lease: Lease | None = None
        self._is_soon = False
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PHALANX_")
        }
        #: Where a task begins that names no place of its own.
        self._workdir = str(Path.cwd())

    # What there is

    @property
    def is_empty(self) -> bool:
        return not self._lives and self.reports.is_empty

    @property
    def are_over(self) -> bool:
        """Nothing runs here."""
        return all(life.is_over for life in self._lives.values())

    @property
    def are_stopping(self) -> bool:
        return all(life.is_over or life.signalled for life in self._lives.values())

    def fences(self) -> list[Micros]:
        """The grace of every task that runs on a lease."""
        return [
            life.fence
            for life in self._lives.values()
            if life.fence is not None and not life.is_over
        ]

    # From the spawner

    def know(self, lives: Iterable[Life]) -> None:
        for life in lives:
            self._know(life)
        self.changed.set()

    def _know(self, life: Life) -> None:
        key = life.key
        self._lives[key] = life
        if life.is_over:
            self._over(life)
        elif life.begun:
            self._progress.setdefault(key, ProgressFile(self._places.progress(key)))
            self.shipper.watch(key)
            self._report(life)

    def _over(self, life: Life) -> None:
        self._progress.pop(life.key, None)
        tell = self._log.debug if life.exit_code == 0 else self._log.info
        tell(
            "task ended",
            task=life.id,
            epoch=life.epoch,
            code=life.exit_code,
            signal=life.signal,
            why=life.failure,
        )
        if life.output_bytes:
            self.shipper.finish(life.key, life.output_bytes)
        else:
            self.shipper.drop(life.key)
        if life.signalled and self._checkpoints.left_by(life.key) is not None:
            self._send_out(life.key, self._save(life))
        else:
            self._report(life)

    def _report(self, life: Life) -> None:
        report = report_of(life)
        if report is not None and life.key not in self._forgotten:
            self.reports.put(report)
            self._soon()

    def _soon(self) -> None:
        if not self._is_soon:
            self._is_soon = True
            asyncio.get_running_loop().call_later(_COALESCE_S, self._now)

    def _now(self) -> None:
        self._is_soon = False
        self.news.set()

    # From the server

    def lease(self, lease: Lease) -> None:
        self._lease = lease
        if self.fences():
            self._owner.send(lease)

    def obey(self, orders: tuple[TaskInstruction, ...]) -> bool:
        """Whether something will come of it in a moment."""
        is_running = False
        for order in orders:
            key = (order.id, order.epoch)
            if order.want is Want.PREPARE and key not in self._lives:
                self._begin(key, order.spec, is_run=False)
            elif order.want is Want.RUN and key not in self._lives and key not in self._sent:
                is_running = True
                self._begin(key, order.spec, is_run=True)
            elif order.want is Want.STOP:
                self._stop(key)
            elif order.want is Want.FORGET:
                self._forget(key)
        return is_running

    def _begin(self, key: Key, spec: TaskSpec | None, *, is_run: bool) -> None:
        if spec is None:
            raise AssertionError(f"bug: told to run {key} without saying what")
        if spec.image is not None:
            # The command is meant for what is in the image: it is never run bare.
            failed = TaskReport(*key, Reported.SPAWN_FAILED, message=_NO_RUNTIME)
            self.reports.put(failed)
            self.news.set()
            return
        if spec.checkpoint is None:
            self._variables[key] = {}
        if key in self._variables:
            self._go_on(key, spec, is_run=is_run)
        elif key not in self._errands:
            self._send_out(key, self._fetch(key, spec, is_run=is_run))

    def _go_on(self, key: Key, spec: TaskSpec, *, is_run: bool) -> None:
        if not is_run:
            self.reports.put(TaskReport(*key, Reported.ACCEPTED))
            self.news.set()
            return
        env = self._environment | spec.env | self._variables.pop(key)
        env["PHALANX_PROGRESS"] = str(self._places.progress(key))
        env["PHALANX_CHECKPOINT_OUT"] = str(self._places.checkpoint_out(key))
        self._sent.add(key)
        workdir = spec.workdir or self._workdir
        run = RunAttempt(*key, spec.command, env, spec.grace, workdir, spec.time_limit, spec.fence)
        if spec.fence and self._lease is not None:
            self._owner.send(self._lease)
        self._owner.send(run)
        self._log.debug("task started", task=key[0], epoch=key[1])

    def _stop(self, key: Key) -> None:
        life = self._lives.get(key)
        if life is None or not life.is_over:
            self._cancel(key)
            self._owner.send(StopAttempt(*key))
            self._log.info("task told to stop", task=key[0], epoch=key[1])
        elif key not in self._errands:
            self._report(life)

    def _forget(self, key: Key) -> None:
        life = self._lives.get(key)
        if life is not None and not life.is_over:
            return
        self._cancel(key)
        self.reports.drop(key)
        if self.shipper.is_open(key):
            self._forgotten.add(key)
        else:
            self._clear(key)
        self.changed.set()

    def _shipped(self, key: Key) -> None:
        if key in self._forgotten:
            self._clear(key)
            self.changed.set()

    def _clear(self, key: Key) -> None:
        self._owner.send(ForgetAttempt(*key))
        life = self._lives.pop(key, None)
        self._sent.discard(key)
        self._forgotten.discard(key)
        self._variables.pop(key, None)
        self._places.remove(key, output=life is not None and life.output_bytes > 0)

    # Errands: what takes a call of its own

    def _send_out(self, key: Key, errand: Coroutine[Any, Any, None]) -> None:
        self._cancel(key)
        task = self._errands[key] = asyncio.create_task(errand)

        def back(done: asyncio.Task[None]) -> None:
            if self._errands.get(key) is done:
                del self._errands[key]
            if not done.cancelled() and done.exception() is not None:
                self._log.error("errand failed", task=key[0], exc_info=done.exception())

        task.add_done_callback(back)

    def _cancel(self, key: Key) -> None:
        errand = self._errands.pop(key, None)
        if errand is not None:
            errand.cancel()

    async def _fetch(self, key: Key, spec: TaskSpec, *, is_run: bool) -> None:
        while True:
            try:
                self._variables[key] = await self._checkpoints.fetch(key)
            except Unreachable:
                await asyncio.sleep(_AGAIN_S)
            except (Refused, OSError) as error:
                self.reports.put(TaskReport(*key, Reported.SPAWN_FAILED, message=str(error)))
                self.news.set()
                return
            else:
                self._go_on(key, spec, is_run=is_run)
                return

    async def _save(self, life: Life) -> None:
        """Before its end is told: with that the server would close the door."""
        path = self._places.checkpoint_out(life.key)
        while True:
            try:
                await self._checkpoints.save(life.key, path)
            except Unreachable:
                await asyncio.sleep(_AGAIN_S)
                continue
            except (Refused, OSError) as error:
                self._log.warning("checkpoint not taken", task=life.id, why=str(error))
            break
        self._report(life)

    async def watch_progress(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S)
            for key, file in self._progress.items():
                found = file.read()
                if found is not None:
                    self.reports.progressed(key, found)
                    self._soon()
