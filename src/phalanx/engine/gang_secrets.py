"""The secrets of gangs that are about to start: resolved before their release, in memory only.

The values are kept until the tasks of the gang run, so that a provider that fails after the release
does no harm. They are in no event and in no row. A new leader resolves them again.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

from phalanx.core.errors import CoreError
from phalanx.core.events import SecretsUnavailable
from phalanx.core.gang import Gang
from phalanx.core.node import AttemptKey
from phalanx.core.spec.secret_references import SecretKey
from phalanx.core.states import State
from phalanx.engine.engine import Engine
from phalanx.engine.errors import NoAnswer
from phalanx.engine.turn import Turn

#: The pause after a failure to resolve the secrets of a gang that is released already.
_RETRY_S = 1.0
NOT_PRIVATE = (
    "secrets are sent only over TLS or on a loopback address, and this worker uses neither; start"
    " the server with --tls auto"
)


class SecretUnavailable(Exception):  # noqa: N818
    """A secret cannot be resolved; the message says which, and why."""


class SecretSource(Protocol):
    async def resolve(self, namespace: str, keys: Collection[SecretKey]) -> dict[SecretKey, str]:
        """The values of the keys. Raises SecretUnavailable."""


class _Values(NamedTuple):
    epoch: int
    by_key: Mapping[SecretKey, str]


class GangSecrets:
    def __init__(
        self,
        engine: Engine,
        source: SecretSource | None,
        wake: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`wake` is called with each worker whose instructions are complete now."""
        self._engine = engine
        self.source = source
        self._wake = wake
        self._values: dict[str, _Values] = {}
        self._lookups: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, set[str]] = {}  #: by job: the workers that need its values

    def values(self, gang: Gang, worker: str) -> Mapping[SecretKey, str] | None:
        """The values for a gang; None while they are resolved, and then the worker is woken."""
        job = gang.job
        kept = self._values.get(job.id)
        if kept is not None and kept.epoch == job.epoch:
            return kept.by_key
        self._waiting.setdefault(job.id, set()).add(worker)
        if job.id not in self._lookups:
            keys = tuple(dict.fromkeys(key for role in job.spec.roles for key in role.secrets))
            lookup = self._look_up(job.id, job.epoch, job.spec.namespace, keys)
            self._lookups[job.id] = asyncio.get_running_loop().create_task(lookup)
        return None

    def observe(self, turn: Turn) -> None:
        """Drop the values of gangs of which no task is about to start."""
        if not self._values:
            return
        for job in {job for changes in turn.changes for job in changes.gangs}:
            gang = turn.cluster.gangs.get(job)
            if gang is None or not any(task.state is State.RESERVED for task in gang.tasks):
                self._values.pop(job, None)

    async def _look_up(
        self, job: str, epoch: int, namespace: str, keys: Collection[SecretKey]
    ) -> None:
        try:
            self._values[job] = _Values(epoch, await self._resolve(namespace, keys))
        except SecretUnavailable as error:
            unavailable = SecretsUnavailable(job, epoch, str(error))
            with suppress(CoreError, NoAnswer):
                await self._engine.apply(unavailable)
            await asyncio.sleep(_RETRY_S)
        finally:
            del self._lookups[job]
            for worker in self._waiting.pop(job, ()):
                self._wake(worker)

    async def _resolve(
        self, namespace: str, keys: Collection[SecretKey]
    ) -> Mapping[SecretKey, str]:
        if self.source is None:
            raise SecretUnavailable("this server has no provider of secrets")
        return await self.source.resolve(namespace, keys)


class SecretDelivery:
    """The secrets in the answer to one call of an agent."""

    def __init__(self, secrets: GangSecrets, worker: str, *, is_private: bool) -> None:
        self._secrets = secrets
        self._worker = worker
        self._is_private = is_private
        self.refused: list[AttemptKey] = []  #: attempts whose secrets must not be sent

    def values(self, gang: Gang, attempt: AttemptKey) -> Mapping[SecretKey, str] | None:
        """The values for an attempt; None if it cannot be told to start now."""
        if not self._is_private:
            self.refused.append(attempt)
            return None
        return self._secrets.values(gang, self._worker)
