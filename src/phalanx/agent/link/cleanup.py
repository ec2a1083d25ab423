"""Removes attempts whose end the server has acknowledged, after their logs have been sent."""

from phalanx.agent.link.attempt_table import AttemptTable
from phalanx.agent.link.log_shipping import LogShipper
from phalanx.agent.link.spawner_client import SpawnerClient
from phalanx.agent.link.starter import AttemptStarter
from phalanx.agent.messages import AttemptKey, ForgetAttempt
from phalanx.agent.trash import Trash


class AttemptCleanup:
    def __init__(
        self,
        spawner: SpawnerClient,
        trash: Trash,
        attempts: AttemptTable,
        starter: AttemptStarter,
        logs: LogShipper,
    ) -> None:
        self._spawner = spawner
        self._trash = trash
        self._attempts = attempts
        self._starter = starter
        self._logs = logs

    def remove_after_logs(self, key: AttemptKey) -> None:
        """Remove an acknowledged attempt now, or as soon as its logs have been sent."""
        if not self._logs.is_open(key):
            self._remove(key)

    def logs_sent(self, key: AttemptKey) -> None:
        if self._attempts.is_acknowledged(key):
            self._remove(key)

    def _remove(self, key: AttemptKey) -> None:
        self._spawner.send(ForgetAttempt(*key))
        self._starter.remove(key)
        status = self._attempts.remove(key)
        self._trash.put_attempt(key, output=status is not None and status.output_bytes > 0)
