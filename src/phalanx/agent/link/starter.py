"""Prepares and starts attempts: the checkpoint is fetched and the image is pulled first, then the
spawner is instructed.
"""

import os
from pathlib import Path

import msgspec
import structlog

from phalanx.agent.link.background_calls import BackgroundCalls
from phalanx.agent.link.checkpoints import CheckpointRefused, Checkpoints
from phalanx.agent.link.container_preparation import (
    ContainerDelayed,
    ContainerPreparation,
    ContainerRefused,
)
from phalanx.agent.link.reports import TaskReports
from phalanx.agent.link.spawner_client import SpawnerClient
from phalanx.agent.link.task_policy import TaskPolicy
from phalanx.agent.messages import (
    AttemptKey,
    PrepareStart,
    RunAttempt,
    RunSecrets,
    StopAttempt,
    TaskUser,
)
from phalanx.agent.secret_files import FOLDER_VARIABLE, NoSecretFiles, SecretFiles
from phalanx.agent.state_dir import CHECKPOINT_OUT, PROGRESS, WATCH, StateDir
from phalanx.agent.task_users import TaskUsers, UserRefused, identity
from phalanx.registry.signatures import SignatureRefused, SignatureUnknown, verify_image
from phalanx.wire.sync import Reported, TaskReport, TaskSpec

_NO_RUNTIME = "this worker has no container runtime; remove the label runtime from it"


class AttemptStarter:
    def __init__(  # noqa: PLR0913, PLR0917
        self,
        spawner: SpawnerClient,
        state_dir: StateDir,
        checkpoints: Checkpoints,
        reports: TaskReports,
        policy: TaskPolicy,
        containers: ContainerPreparation | None,
    ) -> None:
        self._spawner = spawner
        self._state_dir = state_dir
        self._checkpoints = checkpoints
        self._reports = reports
        self._policy = policy
        self.secret_files = SecretFiles(state_dir.path)
        self._containers = containers
        self._users = TaskUsers(policy.users, state_dir.uid_file)
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger().bind()
        self._fetches = BackgroundCalls()
        #: The attempts that are prepared, with the variables for their checkpoint.
        self._prepared: dict[AttemptKey, dict[str, str]] = {}
        self._started: set[AttemptKey] = set()
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PHALANX_")
        }
        #: The working directory of tasks that name none.
        self._workdir = str(Path.cwd())

    def prepare(self, key: AttemptKey, spec: TaskSpec) -> None:
        """Fetch what the attempt needs, then report it as accepted."""
        self._spawner.send(PrepareStart())
        self._begin(key, spec, is_run=False)

    def run(self, key: AttemptKey, spec: TaskSpec) -> None:
        """Start the attempt, prepared or not; it fails if its checkpoint cannot be fetched."""
        self._begin(key, spec, is_run=True)

    def is_started(self, key: AttemptKey) -> bool:
        """Whether the spawner was instructed to run the attempt."""
        return key in self._started

    def cancel(self, key: AttemptKey) -> None:
        """Abort the preparation of an attempt."""
        self._fetches.cancel(key)

    def remove(self, key: AttemptKey) -> None:
        self._fetches.cancel(key)
        self._started.discard(key)
        self._prepared.pop(key, None)
        if self._containers is not None:
            self._containers.remove(key)

    def start_container(self, key: AttemptKey, spec: TaskSpec) -> None:
        """Start the program of a container that the spawner has prepared."""
        if self._containers is None:
            self._fail(key, _NO_RUNTIME)
            return
        try:
            self._containers.start(key, spec)
            self._started.add(key)
        except ContainerRefused as error:
            self._spawner.send(StopAttempt(*key))
            self._fail(key, str(error), is_final=False)

    def _begin(self, key: AttemptKey, spec: TaskSpec, *, is_run: bool) -> None:
        try:
            user = self._user_of(spec)
            if spec.image is not None:
                self._runtime().check(spec, user)
        except (UserRefused, ContainerRefused) as error:
            self._fail(key, str(error))
            return
        if is_run and spec.image is not None:
            self._runtime().start_when_prepared(key)
        if self._containers is not None and key in self._containers:
            return  # the spawner prepares it
        if key not in self._prepared and key not in self._fetches:
            try:
                self._state_dir.create_attempt(key)
            except OSError as error:
                why = f"the worker cannot create a folder for the task: {error.strerror}"
                self._fail(key, why, is_final=False)
                return
        if spec.checkpoint is None and spec.image is None:
            self._prepared[key] = {}
        if key in self._prepared:
            self._continue(key, spec, is_run=is_run)
        elif key not in self._fetches:
            self._fetches.start(key, self._fetch(key, spec, is_run=is_run))

    async def _fetch(self, key: AttemptKey, spec: TaskSpec, *, is_run: bool) -> None:
        try:
            variables = {} if spec.checkpoint is None else await self._checkpoints.fetch(key)
            if spec.image is not None:
                await self._prepare_container(key, spec, variables)
                return
            self._prepared[key] = variables
        except (SignatureRefused, ContainerRefused, UserRefused) as error:
            self._fail(key, str(error))
        except (SignatureUnknown, CheckpointRefused, ContainerDelayed) as error:
            self._fail(key, str(error), is_final=False)
        except OSError as error:
            why = f"the worker cannot write the files of the task: {error.strerror}"
            self._fail(key, why, is_final=False)
        except Exception as error:
            self._log.exception("cannot prepare a task", task=key[0], attempt=key[1])
            why = f"the worker cannot prepare the task: {type(error).__name__}"
            self._fail(key, why, is_final=False)
        else:
            self._continue(key, spec, is_run=is_run)

    def _runtime(self) -> ContainerPreparation:
        """Raises ContainerRefused: a command that is meant for an image must not run without it."""
        if self._containers is None:
            raise ContainerRefused(_NO_RUNTIME)
        return self._containers

    async def _prepare_container(
        self, key: AttemptKey, spec: TaskSpec, variables: dict[str, str]
    ) -> None:
        """Raises SignatureRefused, SignatureUnknown, ContainerRefused, ContainerDelayed,
        UserRefused, OSError."""
        auth = "" if spec.secrets is None else spec.secrets.registry_auth
        await verify_image(spec.image or "", spec.signatures, auth)
        if self._checkpoints.limit_bytes:
            variables |= {"PHALANX_CHECKPOINT_LIMIT": str(self._checkpoints.limit_bytes)}
        if spec.watch:
            self._state_dir.write_task_file(key, WATCH, msgspec.json.encode(spec.watch))

        def report(message: str) -> None:
            self._reports.put(TaskReport(*key, Reported.PREPARING, message=message))

        await self._runtime().prepare(
            key,
            spec,
            own=self._user_of(spec),
            limits=self._policy.limits.limits_of(spec),
            variables=variables,
            report=report,
        )

    def _continue(self, key: AttemptKey, spec: TaskSpec, *, is_run: bool) -> None:
        if is_run:
            self._start(key, spec)
        else:
            self._reports.put_now(TaskReport(*key, Reported.ACCEPTED))

    def _user_of(self, spec: TaskSpec) -> TaskUser | None:
        """Raises UserRefused."""
        try:
            return self._users.user_of(spec.namespace, spec.run_as_user)
        except OSError as error:
            raise UserRefused(f"the worker cannot choose a user: {error.strerror}") from None

    def _start(self, key: AttemptKey, spec: TaskSpec) -> None:
        try:
            user = self._user_of(spec)
            secrets = self._secrets(key, spec, user)
            if spec.watch:
                self._state_dir.write_task_file(key, WATCH, msgspec.json.encode(spec.watch))
            if user is not None:
                self._state_dir.give_attempt(key, user.uid, user.gid)
        except (UserRefused, NoSecretFiles) as error:
            self._fail(key, str(error))
            return
        except OSError as error:
            why = f"the worker cannot prepare the folder of the task: {error.strerror}"
            self._fail(key, why, is_final=False)
            return
        own = {} if user is None else identity(user, self._state_dir.attempt(key))
        env = self._environment | own | spec.env | self._prepared.pop(key)
        env["PHALANX_PROGRESS"] = self._state_dir.task_file(key, PROGRESS)
        env["PHALANX_CHECKPOINT_OUT"] = self._state_dir.task_file(key, CHECKPOINT_OUT)
        paths = (env.get("PYTHONPATH"), str(self._state_dir.python))
        env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        if self._checkpoints.limit_bytes:
            env["PHALANX_CHECKPOINT_LIMIT"] = str(self._checkpoints.limit_bytes)
        workdir = spec.workdir or own.get("HOME", self._workdir)
        run = RunAttempt(
            *key,
            spec.command,
            env,
            spec.grace,
            workdir,
            spec.time_limit,
            spec.fence,
            self._policy.limits.limits_of(spec),
            user,
            secrets,
        )
        self._spawner.send(run)
        self._started.add(key)
        self._log.debug("task started", task=key[0], attempt=key[1])

    def _secrets(self, key: AttemptKey, spec: TaskSpec, user: TaskUser | None) -> RunSecrets | None:
        """The variables with secrets, after their files were written. Raises NoSecretFiles."""
        if spec.secrets is None:
            return None
        env = dict(spec.secrets.env)
        if spec.secrets.files:
            env[FOLDER_VARIABLE] = str(self.secret_files.write(key, spec.secrets.files, user))
        return RunSecrets(env, spec.secrets.redact)

    def _fail(self, key: AttemptKey, why: str, *, is_final: bool = True) -> None:
        """Report that the attempt cannot start; `is_final` if another try would fail too."""
        reported = Reported.START_REFUSED if is_final else Reported.SPAWN_FAILED
        self._reports.put_now(TaskReport(*key, reported, message=why))
