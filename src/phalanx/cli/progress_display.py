"""The progress of a job while its output is printed: a line below the output on a terminal, and
lines on standard error where there is none.
"""

import threading
from types import TracebackType
from typing import TYPE_CHECKING

from rich.live import Live
from rich.text import Text

from phalanx.cli import formatting
from phalanx.cli.connection import silence_text
from phalanx.cli.output import console
from phalanx.cli.progress_text import progress_line
from phalanx.core.model import Phase

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx.client import Client
    from phalanx.wire.jobs import JobView

_POLL_S = 1.0
_REFRESH_HZ = 2
#: Without a terminal, progress is printed this often.
_PRINT_S = 30.0
_PIPE_WIDTH = 200
#: Before the progress: the phase and a blank.
_PHASE_WIDTH = 9


class ProgressDisplay:
    """Shows the progress in the block. Print the output to its `output` console."""

    def __init__(self, client: "Client", job: str, output: "Console") -> None:
        self._client = client
        self._job = job
        self.output = output
        errors = console(on_stderr=True)
        self._screen: Console = self.output if self.output.is_terminal else errors
        self._line = Text()
        self._live: Live | None = None
        if self._screen.is_terminal:
            self._live = Live(
                console=self._screen,
                transient=True,
                refresh_per_second=_REFRESH_HZ,
                get_renderable=self._shown,
            )
        is_shared = self._live is not None and errors.is_terminal
        #: For standard error, without disturbing the line of progress on the same terminal.
        self.errors: Console = self._screen if is_shared else errors
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "ProgressDisplay":
        if self._live is not None:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join(_POLL_S)
        if self._live is not None:
            self._live.stop()

    def _shown(self) -> Text:
        """The line of progress; while no server answers, that instead."""
        silence = silence_text(self._client)
        return Text(silence, style="yellow") if silence else self._line

    def _run(self) -> None:
        from phalanx.client.errors import PhalanxError  # noqa: PLC0415

        printed = ""
        while not self._done.wait(_POLL_S if self._live is not None else _PRINT_S):
            try:
                job = next(iter(self._client.jobs(id_prefix=self._job, page=1)), None)
            except PhalanxError:
                continue  # the output is what matters, and it waits for a server too
            if job is None or self._done.is_set():
                return
            if self._live is not None:
                self._line = _line(job, self._screen.width)
            elif (line := _line(job, _PIPE_WIDTH).plain) and line != printed:
                printed = line
                self._screen.print(line)


def _line(job: "JobView", width: int) -> Text:
    """`running  ████░░░░ step 120 of 500 (24%), 12 steps/s, 31s left, loss 0.25`."""
    if job.progress is None or job.finished_at is not None:
        return Text()
    if job.phase is Phase.RUNNING:
        line = progress_line(job.progress, width - _PHASE_WIDTH)
    else:
        line = formatting.reason_text(job)
    phase = formatting.styled(job.phase)
    return Text.assemble(phase, f" {line}", overflow="ellipsis", no_wrap=True)
