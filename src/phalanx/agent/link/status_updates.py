"""Status updates from the spawner: they become reports, and the logs and checkpoint of an attempt
that has ended are sent.
"""

import structlog

from phalanx.agent.link.attempt_table import AttemptTable
from phalanx.agent.link.background_calls import BackgroundCalls
from phalanx.agent.link.checkpoints import CheckpointSaver
from phalanx.agent.link.log_shipping import LogShipper
from phalanx.agent.link.progress import ProgressWatcher
from phalanx.agent.link.reports import TaskReports, report_of
from phalanx.agent.messages import AttemptKey, AttemptStatus
from phalanx.agent.state_dir import StateDir
from phalanx.agent.task_files import TaskFile


class StatusUpdates:
    def __init__(  # noqa: PLR0913, PLR0917
        self,
        state_dir: StateDir,
        attempts: AttemptTable,
        reports: TaskReports,
        progress: ProgressWatcher,
        logs: LogShipper,
        saver: CheckpointSaver,
    ) -> None:
        self._state_dir = state_dir
        self._attempts = attempts
        self._reports = reports
        self._progress = progress
        self._logs = logs
        self._saver = saver
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger().bind()
        self._saves = BackgroundCalls()

    def handle(self, status: AttemptStatus) -> None:
        self._attempts.update(status)
        if status.started and not self._attempts.is_acknowledged(status.key):
            self._progress.watch(status.key)  # also if it has ended: the start may not be told
        if status.has_ended:
            self._ended(status)
        elif status.started:
            self._logs.watch(status.key)
            self._report(status)
        elif status.prepared:
            self._report(status)

    def report_end(self, status: AttemptStatus) -> None:
        """Report the end of an attempt again, unless its checkpoint is still being saved."""
        if status.key not in self._saves:
            self._report(status)

    def acknowledge(self, key: AttemptKey) -> None:
        """The server knows how the attempt ended: report nothing more about it."""
        self._saves.cancel(key)
        self._reports.remove(key)
        self._attempts.acknowledge(key)

    def _ended(self, status: AttemptStatus) -> None:
        """Take what the attempt has left, and report its end in any case."""
        has_files = self._state_dir.has_task_files(status.key)
        self._progress.unwatch(status.key, has_files=has_files)
        log = self._log.debug if status.exit_code == 0 else self._log.info
        log(
            "task ended",
            task=status.id,
            attempt=status.epoch,
            exit_code=status.exit_code,
            signal=status.signal,
            error=status.start_error or status.note or None,
            killed_for_memory=status.memory_used is not None or None,
        )
        if status.output_bytes:
            self._logs.finish(status.key, status.output_bytes)
        else:
            self._logs.drop(status.key)
        checkpoint = self._saver.open(status) if status.started and has_files else None
        if checkpoint is not None:
            self._saves.start(status.key, self._save_checkpoint(status, checkpoint))
        else:
            self._report(status)

    async def _save_checkpoint(self, status: AttemptStatus, file: TaskFile) -> None:
        """Save the checkpoint, then report the end: the server takes none after that."""
        await self._saver.save(status.key, file)
        self._report(status)

    def _report(self, status: AttemptStatus) -> None:
        report = report_of(status)
        if report is not None and not self._attempts.is_acknowledged(status.key):
            self._reports.put(report)
