"""The containers of a worker's attempts: created before the start barrier, removed after the end.

A container has the name of its attempt and a label of its worker, so that what an earlier agent has
left is found without any other record.
"""

import asyncio
import hashlib
import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import structlog

from phalanx.agent.containers.create_command import create_command
from phalanx.agent.containers.new_container import ContainerSecrets, ContainerUser, NewContainer
from phalanx.agent.containers.runtime import ContainerPolicy, runtime_environment
from phalanx.agent.containers.runtime_call import RuntimeCallError, call_runtime
from phalanx.agent.messages import AttemptKey, ContainerCalls, attempt_name
from phalanx.agent.spawner.process_tree import new_tag
from phalanx.agent.state_dir import StateDir
from phalanx.wire.sync import TaskSpec

#: Commands of the runtime at a time: each takes locks and memory.
_AT_A_TIME = 4
#: What is to be removed within this time is removed together, and not while the next task starts.
_COLLECT_S = 2.0
#: The pauses after failed removals; the next agent tries again what is left then.
_RETRIES_S = (0.5, 1.0, 2.0, 5.0)
#: How long a worker that exits waits for its containers to be removed.
_REST_S = 10.0


class ContainerStore:
    def __init__(self, policy: ContainerPolicy, state_dir: StateDir) -> None:
        self._policy = policy
        self._folder = state_dir.containers
        self._is_installed = False
        self._worker = hashlib.sha256(os.fsencode(state_dir.path)).hexdigest()[:12]
        self.slots = asyncio.Semaphore(_AT_A_TIME)  #: for commands of the runtime
        self._removed = asyncio.Event()  #: something is to be removed
        self._to_remove: set[str] = set()
        self._created: set[AttemptKey] = set()
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

    def new(  # noqa: PLR0913, PLR0917
        self,
        key: AttemptKey,
        control_group: str,
        attempt_folder: Path,
        env: dict[str, str],
        user: ContainerUser | None,
        secrets: ContainerSecrets,
    ) -> NewContainer:
        """The container that is to be created for an attempt."""
        name = self._name(key)
        return NewContainer(
            key,
            name,
            self._worker,
            new_tag(),
            control_group,
            attempt_folder,
            self._folder / f"{name}.monitor",
            self._folder / f"{name}.pid",
            self._folder / f"{name}.id",
            env,
            user,
            secrets,
        )

    def _name(self, key: AttemptKey) -> str:
        return f"phalanx-{self._worker}-{attempt_name(key)}"

    def _install(self) -> None:
        """Raises OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if not self._is_installed:
            self._policy.runtime.install()
            self._is_installed = True

    async def create(self, spec: TaskSpec, new: NewContainer) -> ContainerCalls:
        """Create a container in place of one with the same name, if the spawner does not create it,
        and return how the spawner runs it. Raises RuntimeCallError, OSError."""
        self._install()
        new.id_file.unlink(missing_ok=True)
        self._created.add(new.key)
        command, runtime = create_command(spec, new, self._policy), self._policy.runtime
        if not runtime.is_created_by_spawner:
            async with self.slots:
                await self._create(command, new)
        return runtime.calls(new, command)

    async def _create(self, command: tuple[str, ...], new: NewContainer) -> None:
        try:
            try:
                await call_runtime(command)
            except RuntimeCallError as error:
                if not self._policy.runtime.is_name_taken(str(error)):
                    raise
                await call_runtime(self._policy.runtime.remove([new.name]))
                await call_runtime(command)
        except asyncio.CancelledError:
            self.remove(new.key)
            raise

    def remove(self, key: AttemptKey) -> None:
        """Remove the container of an attempt in the background, if it was created."""
        if key in self._created:
            self._created.discard(key)
            self._remove(self._name(key))

    def _remove(self, name: str) -> None:
        self._to_remove.add(name)
        self._removed.set()

    async def run(self, live: Iterable[AttemptKey]) -> None:
        """Remove what an earlier agent has left of other attempts, then what has ended."""
        if self._policy.runtime.is_installed_early:
            with suppress(OSError):  # tried again with the first container
                self._install()
        if self._folder.is_dir():
            await self._take_over(set(live))
        while True:
            await self._removed.wait()
            await asyncio.sleep(_COLLECT_S)
            self._removed.clear()
            names = sorted(self._to_remove)
            await self._remove_all(names)
            self._forget(names)

    async def _remove_all(self, names: list[str]) -> None:
        """Remove containers; one whose processes were killed a moment ago may need another try."""
        message = ""
        for pause_s in _RETRIES_S:
            try:
                async with self.slots:
                    await call_runtime(self._policy.runtime.remove(names))
            except RuntimeCallError as error:
                self._log.debug("cannot remove containers yet", names=names, error=str(error))
                message = str(error)
                await asyncio.sleep(pause_s)
            else:
                return
        self._log.warning("cannot remove containers", names=names, error=message)

    async def _take_over(self, live: set[AttemptKey]) -> None:
        label = f"label=phalanx.worker={self._worker}"
        command = ("ps", "--all", "--filter", label, "--format", "{{.Names}}")
        try:
            listed = await call_runtime(self._policy.runtime.command(*command))
        except RuntimeCallError as error:
            self._log.warning("cannot list containers", error=str(error))
            return
        kept = {self._name(key): key for key in live | self._created}
        for name in listed.split():
            if name in kept:
                self._created.add(kept[name])
            else:
                self._remove(name)

    def remove_rest(self) -> None:
        """Remove what has ended before the worker exits, as far as a few seconds allow."""
        names = sorted(self._to_remove)
        if names:
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run(  # noqa: S603
                    self._policy.runtime.remove(names),
                    env=runtime_environment(),
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=_REST_S,
                    check=False,
                )
            self._forget(names)

    def _forget(self, names: list[str]) -> None:
        self._to_remove.difference_update(names)
        for name in names:
            for path in self._folder.glob(f"{name}.*"):
                path.unlink(missing_ok=True)
