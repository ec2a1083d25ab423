"""The inputs of gangs that are about to start: values of secrets, and digests of images.

They are resolved before the release and kept in memory until the tasks of the gang run, so that a
provider or a registry that fails after the release does no harm. Values of secrets are in no event
and in no row. A new leader resolves them again.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

import msgspec

from phalanx.core.errors import CoreError
from phalanx.core.events import ImagesPinned, InputsUnavailable
from phalanx.core.gang import Gang
from phalanx.core.node import AttemptKey
from phalanx.core.spec.job import JobSpec, Role
from phalanx.core.spec.secret_references import SecretKey
from phalanx.core.states import State
from phalanx.core.warnings import UncheckedImage
from phalanx.engine.engine import Engine
from phalanx.engine.errors import NoAnswer
from phalanx.engine.turn import Turn
from phalanx.wire.sync import RequiredSignature

#: The pause after a failure to resolve the inputs of a gang that is released already.
_RETRY_S = 1.0
NOT_PRIVATE = (
    "secrets are sent only over TLS or on a loopback address, and this worker uses neither; start"
    " the server with --tls auto"
)


class InputUnavailable(Exception):  # noqa: N818
    """A secret or an image cannot be resolved now; the message says which, and why."""


class InputMissing(InputUnavailable):
    """A secret or an image does not exist, so that another try would fail too."""


class ResolvedInputs(msgspec.Struct, frozen=True):
    secrets: Mapping[SecretKey, str] = {}
    images: Mapping[str, str] = {}  #: by image of a role: the reference with its digest
    signatures: tuple[RequiredSignature, ...] = ()  #: that every image needs
    registry_auth: str = ""  #: for pulls, in the form of Docker's config.json
    missing_pull_secrets: tuple[str, ...] = ()  #: that roles name and the namespace does not have

    def __repr__(self) -> str:
        return f"ResolvedInputs({len(self.secrets)} secrets, {len(self.images)} images)"


class ImagePreview(NamedTuple):
    """What is known about the images of a job that is planned."""

    failure: str = ""  #: why no worker could start the job; empty if nothing is known against it
    unchecked: tuple[UncheckedImage, ...] = ()


class InputSource(Protocol):
    async def resolve(self, spec: JobSpec) -> ResolvedInputs:
        """The inputs of all roles of a job. Raises InputUnavailable."""


def needs_inputs(role: Role) -> bool:
    return bool(role.secrets) or role.image is not None


class GangInputs:
    def __init__(
        self,
        engine: Engine,
        source: InputSource | None,
        wake: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`wake` is called with each worker whose instructions are complete now."""
        self._engine = engine
        self._source = source
        self._wake = wake
        self._resolved: dict[str, tuple[int, ResolvedInputs]] = {}  #: by job, with its epoch
        self._lookups: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, set[str]] = {}  #: by job: the workers that need its inputs

    def of(self, gang: Gang, worker: str) -> ResolvedInputs | None:
        """The inputs of a gang; None while they are resolved, and then the worker is woken."""
        job = gang.job
        epoch, resolved = self._resolved.get(job.id, (None, None))
        if resolved is not None and epoch == job.epoch:
            return resolved
        self._waiting.setdefault(job.id, set()).add(worker)
        if job.id not in self._lookups:
            lookup = self._look_up(job.id, job.epoch, job.spec)
            self._lookups[job.id] = asyncio.get_running_loop().create_task(lookup)
        return None

    def observe(self, turn: Turn) -> None:
        """Drop the inputs of gangs of which no task is about to start."""
        if not self._resolved:
            return
        for job in {job for changes in turn.changes for job in changes.gangs}:
            gang = turn.cluster.gangs.get(job)
            if gang is None or not any(task.state is State.RESERVED for task in gang.tasks):
                self._resolved.pop(job, None)

    async def _look_up(self, job: str, epoch: int, spec: JobSpec) -> None:
        try:
            resolved = await self._resolve(spec)
            pinned = {image: full for image, full in resolved.images.items() if full != image}
            if pinned:
                await self._engine.apply(ImagesPinned(job, pinned))
            self._resolved[job] = epoch, resolved
        except (CoreError, NoAnswer):
            await asyncio.sleep(_RETRY_S)  # the job has ended, or another server leads
        except InputUnavailable as error:
            with suppress(CoreError, NoAnswer):
                is_final = isinstance(error, InputMissing)
                await self._engine.apply(InputsUnavailable(job, epoch, str(error), is_final))
            await asyncio.sleep(_RETRY_S)
        finally:
            del self._lookups[job]
            for worker in self._waiting.pop(job, ()):
                self._wake(worker)

    async def _resolve(self, spec: JobSpec) -> ResolvedInputs:
        if self._source is not None:
            return await self._source.resolve(spec)
        if any(role.secrets for role in spec.roles):
            raise InputMissing("this server has no provider of secrets")
        return ResolvedInputs()


class InputDelivery:
    """The inputs in the answer to one call of an agent."""

    def __init__(self, inputs: GangInputs, worker: str, *, is_private: bool) -> None:
        self._inputs = inputs
        self._worker = worker
        self._is_private = is_private
        self.refused: list[AttemptKey] = []  #: attempts whose secrets must not be sent

    def of(self, gang: Gang, role: Role, attempt: AttemptKey) -> ResolvedInputs | None:
        """The inputs for an attempt; None if it cannot be told to start now."""
        if (role.secrets or role.pull_secrets) and not self._is_private:
            self.refused.append(attempt)
            return None
        return self._inputs.of(gang, self._worker)
