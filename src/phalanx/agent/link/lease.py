"""The worker's lease, passed on to the spawner while it runs fenced attempts."""

from phalanx.agent.link.attempt_table import AttemptTable
from phalanx.agent.link.spawner_client import SpawnerClient
from phalanx.agent.messages import Lease


class LeaseSender:
    def __init__(self, spawner: SpawnerClient, attempts: AttemptTable) -> None:
        self._spawner = spawner
        self._attempts = attempts
        self._lease: Lease | None = None

    def renew(self, lease: Lease) -> None:
        """Keep the latest lease, and send it if a fenced attempt runs."""
        self._lease = lease
        if self._attempts.fence_graces():
            self._spawner.send(lease)

    def send(self) -> None:
        """Send the latest lease, before the start of a fenced attempt."""
        if self._lease is not None:
            self._spawner.send(self._lease)
