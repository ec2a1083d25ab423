"""The server's instructions on attempts: prepare, run, stop and forget."""

import structlog

from phalanx.agent.link.attempt_table import AttemptTable
from phalanx.agent.link.cleanup import AttemptCleanup
from phalanx.agent.link.spawner_client import SpawnerClient
from phalanx.agent.link.starter import AttemptStarter
from phalanx.agent.link.status_updates import StatusUpdates
from phalanx.agent.messages import AttemptKey, StopAttempt
from phalanx.wire.sync import TaskInstruction, TaskSpec, Want


class Instructions:
    def __init__(
        self,
        spawner: SpawnerClient,
        attempts: AttemptTable,
        starter: AttemptStarter,
        updates: StatusUpdates,
        cleanup: AttemptCleanup,
    ) -> None:
        self._spawner = spawner
        self._attempts = attempts
        self._starter = starter
        self._updates = updates
        self._cleanup = cleanup
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

    def follow(self, instruction: TaskInstruction) -> bool:
        """Follow an instruction; whether it starts an attempt."""
        key = (instruction.id, instruction.epoch)
        match instruction.want:
            case Want.PREPARE if key not in self._attempts:
                self._starter.prepare(key, _spec_of(instruction))
            case Want.RUN if not self._starter.is_started(key):
                return self._run(key, _spec_of(instruction))
            case Want.STOP:
                self._stop(key)
            case Want.FORGET:
                self._forget(key)
        return False

    def _run(self, key: AttemptKey, spec: TaskSpec) -> bool:
        status = self._attempts.get(key)
        if status is None:
            self._starter.run(key, spec)
        elif status.is_waiting:
            self._starter.start_container(key, spec)
        return status is None or status.is_waiting

    def _stop(self, key: AttemptKey) -> None:
        status = self._attempts.get(key)
        if status is not None and status.has_ended:
            self._updates.report_end(status)
        else:
            self._starter.cancel(key)
            self._spawner.send(StopAttempt(*key))
            self._log.info("stopping task", task=key[0], attempt=key[1])

    def _forget(self, key: AttemptKey) -> None:
        status = self._attempts.get(key)
        if status is None or status.has_ended:
            self._updates.acknowledge(key)
            self._cleanup.remove_after_logs(key)


def _spec_of(instruction: TaskInstruction) -> TaskSpec:
    if instruction.spec is None:
        raise AssertionError(f"bug: {instruction.want} of {instruction.id} came without a spec")
    return instruction.spec
