"""Connects the parts of the link that deal with attempts: instructions go down to the spawner,
reports, logs and checkpoints go up to the server.
"""

from collections.abc import Iterable

from phalanx.agent.link.attempt_problems import AttemptProblems
from phalanx.agent.link.attempt_table import AttemptTable
from phalanx.agent.link.checkpoints import Checkpoints, CheckpointSaver
from phalanx.agent.link.cleanup import AttemptCleanup
from phalanx.agent.link.container_preparation import ContainerPreparation
from phalanx.agent.link.instructions import Instructions
from phalanx.agent.link.leader_client import LeaderClient
from phalanx.agent.link.lease import LeaseKeeper
from phalanx.agent.link.log_shipping import LogShipper
from phalanx.agent.link.progress import ProgressWatcher
from phalanx.agent.link.reports import TaskReports
from phalanx.agent.link.spawner_client import SpawnerClient
from phalanx.agent.link.starter import AttemptStarter
from phalanx.agent.link.status_updates import StatusUpdates
from phalanx.agent.link.task_policy import TaskPolicy
from phalanx.agent.messages import AttemptKey, AttemptStatus
from phalanx.agent.state_dir import StateDir
from phalanx.agent.trash import Trash
from phalanx.wire.sync import TaskInstruction


class AttemptController:
    def __init__(  # noqa: PLR0913, PLR0917
        self,
        worker: str,
        spawner: SpawnerClient,
        state_dir: StateDir,
        server: LeaderClient,
        policy: TaskPolicy,
        control_group: str = "",
    ) -> None:
        self.attempts = AttemptTable()
        self.reports = TaskReports()
        self.lease = LeaseKeeper(state_dir)
        self.trash = Trash(state_dir)
        self.checkpoints = Checkpoints(server, state_dir)
        self._problems = AttemptProblems(self.reports)
        self.progress = ProgressWatcher(state_dir, self.reports, self._problems)
        self.logs = LogShipper(server, state_dir, worker, self._problems, self._logs_sent)
        self.containers = (
            None
            if isinstance(policy.containers, str)
            else ContainerPreparation(policy.containers, spawner, state_dir, control_group)
        )
        starter = AttemptStarter(
            spawner, state_dir, self.checkpoints, self.reports, policy, self.containers
        )
        self.secret_files = starter.secret_files
        self._cleanup = AttemptCleanup(spawner, self.trash, self.attempts, starter, self.logs)
        saver = CheckpointSaver(self.checkpoints, self._problems)
        self._updates = StatusUpdates(
            state_dir, self.attempts, self.reports, self.progress, self.logs, saver
        )
        self._instructions = Instructions(
            spawner, self.attempts, starter, self._updates, self._cleanup
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is no attempt, and nothing to report."""
        return self.attempts.is_empty and self.reports.is_empty

    def update(self, statuses: Iterable[AttemptStatus]) -> None:
        """Handle the statuses that the spawner has sent."""
        for reported in statuses:
            status = reported
            if self.containers is not None:
                status = self.containers.explained(status)
            if status.problem:
                self._problems.report(status.key, status.problem)
            if status.has_ended:
                self.secret_files.remove(status.key)
            with self._problems.contained(status.key, "handle the status"):
                self._updates.handle(status)
            if self.containers is not None and status.is_waiting:
                self.containers.is_prepared(status.key)
            elif self.containers is not None and status.has_ended:
                self.containers.remove(status.key)
            elif self.containers is not None and status.started:
                self.containers.is_started(status.key)

    def remove_secrets_except(self, attempts: Iterable[AttemptKey]) -> None:
        """Remove the secrets that an earlier link has left of other attempts."""
        attempts = list(attempts)
        self.secret_files.remove_except(attempts)
        if self.containers is not None:
            self.containers.remove_secrets_except(attempts)

    def follow(self, instructions: Iterable[TaskInstruction]) -> bool:
        """Follow the instructions of the server; whether one of them starts an attempt."""
        is_starting = False
        for instruction in instructions:
            key = (instruction.id, instruction.epoch)
            with self._problems.contained(key, f"follow the instruction to {instruction.want}"):
                is_starting |= self._instructions.follow(instruction)
        return is_starting

    def _logs_sent(self, key: AttemptKey) -> None:
        self._cleanup.logs_sent(key)
