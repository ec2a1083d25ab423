"""Prepares the containers of attempts: the image is pulled and the container is created, and then
the spawner creates its processes, which wait for the start.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from phalanx.agent.containers.container_store import ContainerStore
from phalanx.agent.containers.create_command import (
    FOLDER,
    SECRETS,
    SecurityRefused,
    check_security,
    user_in_container,
)
from phalanx.agent.containers.image_pulls import ImagePulls, PullFailed, PullRefused
from phalanx.agent.containers.new_container import NewContainer
from phalanx.agent.containers.runtime import ContainerPolicy
from phalanx.agent.containers.runtime_call import RuntimeCallError
from phalanx.agent.containers.secret_folders import SecretFolders
from phalanx.agent.link.spawner_client import SpawnerClient
from phalanx.agent.messages import (
    AttemptKey,
    AttemptStatus,
    ContainerCalls,
    PrepareContainer,
    RunAttempt,
    RunSecrets,
    StartContainer,
    TaskLimits,
    TaskUser,
)
from phalanx.agent.secret_files import FOLDER_VARIABLE, NoSecretFiles
from phalanx.agent.spawner.cgroups import group_of
from phalanx.agent.state_dir import CHECKPOINT_IN, CHECKPOINT_OUT, PROGRESS, StateDir
from phalanx.registry.logins import without_login
from phalanx.wire.sync import TaskSpec

Report = Callable[[str], None]

#: After this time the next container is prepared too.
_PREPARED_S = 60.0


class ContainerRefused(Exception):  # noqa: N818
    """The container of a task cannot be created on this worker; the message says why."""


class ContainerDelayed(Exception):  # noqa: N818
    """The container of a task cannot be created now; the message says why."""


class ContainerPreparation:
    def __init__(
        self,
        policy: ContainerPolicy,
        spawner: SpawnerClient,
        state_dir: StateDir,
        control_group: str,
    ) -> None:
        self._policy = policy
        self._spawner = spawner
        self._state_dir = state_dir
        self._control_group = control_group
        self._pulls = ImagePulls(policy.runtime)
        self._secrets = SecretFolders(state_dir.containers)
        self.store = ContainerStore(policy, state_dir)
        #: The containers that the spawner has instructions to prepare.
        self._prepared: dict[AttemptKey, TaskSpec] = {}
        self._preparing: dict[AttemptKey, asyncio.Event] = {}  #: set when the spawner has done it
        self._to_start: set[AttemptKey] = set()  #: as soon as they are prepared

    def __contains__(self, key: AttemptKey) -> bool:
        """Whether the spawner has the instruction to prepare the container of the attempt."""
        return key in self._prepared

    def check(self, spec: TaskSpec, own: TaskUser | None) -> None:
        """Raises ContainerRefused if this worker would not run the task."""
        try:
            check_security(spec, self._policy)
            user_in_container(spec, own, self._policy)
        except SecurityRefused as error:
            raise ContainerRefused(str(error)) from None
        why_not = self._policy.runtime.no_secret_variables
        if spec.secrets is not None and spec.secrets.env and why_not:
            raise ContainerRefused(why_not)

    async def prepare(  # noqa: PLR0913
        self,
        key: AttemptKey,
        spec: TaskSpec,
        *,
        own: TaskUser | None,
        limits: TaskLimits,
        variables: Mapping[str, str],
        report: Report,
    ) -> None:
        """Pull the image, create the container, and tell the spawner to create its processes.

        Raises ContainerRefused, ContainerDelayed, OSError.
        """
        user = user_in_container(spec, own, self._policy)
        if user is None:
            self._state_dir.open_attempt_to_all(key)
        else:
            self._state_dir.give_attempt(key, user.uid, user.gid)
        env = {**spec.env, **variables, **_files_in_container(variables)}
        group, folder = group_of(self._control_group, key), self._state_dir.attempt(key)
        try:
            secrets = self._secrets.write(key, spec.secrets, user)
            env |= {} if secrets.files is None else {FOLDER_VARIABLE: str(SECRETS)}
            new = self.store.new(key, group, folder, env, user, secrets)
            calls = await self._create(spec, new, report)
        except PullRefused as error:
            missing = spec.missing_pull_secrets
            hint = f"; {without_login(missing, spec.namespace)}" if missing else ""
            raise ContainerRefused(f"{error}{hint}") from None
        except NoSecretFiles as error:
            raise ContainerRefused(str(error)) from None
        except PullFailed as error:
            raise ContainerDelayed(str(error)) from None
        except RuntimeCallError as error:
            self.store.remove(key)
            raise ContainerRefused(f"cannot create the container: {error}") from None
        run = RunAttempt(
            *key,
            (),
            {},
            spec.grace,
            time_limit=spec.time_limit,
            fence=spec.fence,
            limits=limits,
            secrets=None if spec.secrets is None else RunSecrets(redact=spec.secrets.redact),
        )
        if self._policy.runtime.is_created_by_spawner:
            async with self.store.slots:
                await self._prepare(spec, PrepareContainer(run, calls))
        else:
            self._prepared[key] = spec
            self._spawner.send(PrepareContainer(run, calls))

    async def _prepare(self, spec: TaskSpec, message: PrepareContainer) -> None:
        """Return when the container is prepared, could not be, or takes long."""
        key = message.run.key
        answered = self._preparing[key] = asyncio.Event()
        self._prepared[key] = spec
        self._spawner.send(message)
        try:
            async with asyncio.timeout(_PREPARED_S):
                await answered.wait()
        except TimeoutError:
            pass
        finally:
            self._preparing.pop(key, None)

    async def _create(self, spec: TaskSpec, new: NewContainer, report: Report) -> ContainerCalls:
        """Raises PullFailed, RuntimeCallError, OSError."""
        if spec.image is None:
            raise AssertionError("bug: a container needs an image")
        registry_auth = "" if spec.secrets is None else spec.secrets.registry_auth
        await self._pulls.ensure(spec.image, registry_auth, report)
        try:
            return await self.store.create(spec, new)
        except RuntimeCallError as error:
            if not self._policy.runtime.is_image_missing(str(error)):
                raise
            self._pulls.forget(spec.image)
            await self._pulls.ensure(spec.image, registry_auth, report)
            return await self.store.create(spec, new)

    def start(self, key: AttemptKey, spec: TaskSpec) -> None:
        """Start the program of a prepared container. Raises ContainerRefused."""
        if self._prepared.get(key, spec).env != spec.env:
            raise ContainerRefused("the gang has changed since the container was prepared")
        self._spawner.send(StartContainer(*key))

    def start_when_prepared(self, key: AttemptKey) -> None:
        self._to_start.add(key)

    def is_prepared(self, key: AttemptKey) -> None:
        """The container can be started."""
        self._answered(key)
        if not self._policy.runtime.keeps_variables_until_start:
            self._secrets.processes_exist(key)
        if key in self._to_start:
            self._to_start.discard(key)
            self._spawner.send(StartContainer(*key))

    def is_started(self, key: AttemptKey) -> None:
        """The program of the container runs, or ran."""
        self._secrets.processes_exist(key)

    def _answered(self, key: AttemptKey) -> None:
        if key in self._preparing:
            self._preparing[key].set()

    def explained(self, status: AttemptStatus) -> AttemptStatus:
        """The status, in our words if the image was not in the storage. It is pulled next time."""
        spec, error = self._prepared.get(status.key), status.start_error
        if spec is None or spec.image is None or error is None:
            return status
        if not self._policy.runtime.is_image_missing(error):
            return status
        try:
            self._pulls.forget(spec.image)
        except PullRefused as refused:
            return replace(status, start_error=str(refused))
        return status

    def remove(self, key: AttemptKey) -> None:
        """Remove the container of an attempt that has ended or was not started."""
        self._answered(key)
        self._prepared.pop(key, None)
        self._to_start.discard(key)
        self._secrets.remove(key)
        self.store.remove(key)

    def remove_secrets_except(self, attempts: Iterable[AttemptKey]) -> None:
        """Remove what an earlier process of this worker has left of other attempts."""
        self._secrets.remove_except(set(attempts))


def _files_in_container(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables with the paths of the task's files, as the container has them."""
    paths = {
        "PHALANX_PROGRESS": str(FOLDER / PROGRESS),
        "PHALANX_CHECKPOINT_OUT": str(FOLDER / CHECKPOINT_OUT),
    }
    if "PHALANX_CHECKPOINT_IN" in variables:
        paths["PHALANX_CHECKPOINT_IN"] = str(FOLDER / CHECKPOINT_IN)
    return paths
