"""Waiting for a job: its phase and reason on a terminal while they change, and how it ended."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rich.text import Text

from phalanx.cli import formatting
from phalanx.cli.connection import TAKEOVER_S, silence_text
from phalanx.cli.exits import Status
from phalanx.cli.output import console, is_quiet, note, print_task_output
from phalanx.cli.progress_text import progress_line
from phalanx.cli.visible_text import say, visible
from phalanx.core import records
from phalanx.core.model import Phase
from phalanx.core.spec.durations import short_duration

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx.client import Client
    from phalanx.wire.jobs import JobDetail


#: The phases of elements that failed by themselves.
_UNSUCCESSFUL = (Phase.FAILED, Phase.TIMED_OUT)
#: How long to wait for the last events of a job that has ended.
_LAST_EVENTS_S = 5.0
#: Columns before the detail of a running job: a spinner, the phase and a colon.
_BEFORE_DETAIL = 12


def wait_for(client: "Client", job: str, *, timeout_s: float | None = None) -> "JobDetail":
    """Wait until the job ends. Its phase is shown on a terminal meanwhile. Raises TimeoutError."""
    client.patience_s = TAKEOVER_S
    return _watch(client, job, lambda _: False, timeout_s)


def wait_for_start(client: "Client", job: str) -> None:
    """On a terminal, show why the job is pending until its first attempt begins."""
    client.patience_s = TAKEOVER_S
    if console(on_stderr=True).is_terminal and not is_quiet():
        _watch(client, job, lambda seen: seen.attempt > 0)


def follow_output(client: "Client", job: str, *, on_stderr: bool = False) -> None:
    """Print the output of the job until it ends, with its progress and the events of its stops."""
    from phalanx.cli.progress_display import ProgressDisplay  # noqa: PLC0415

    if is_quiet():
        print_task_output(client.logs(job, follow=True), console(on_stderr=on_stderr))
        return
    with (
        ProgressDisplay(client, job, console(on_stderr=on_stderr)) as display,
        _stops_printed(client, job, display.errors),
    ):
        print_task_output(client.logs(job, follow=True), display.output)


def follow_array(client: "Client", array: str) -> None:
    """Print which elements fail until the array ends, and on a terminal how many are in which
    phase. The output of elements is not mixed: read it with `phalanx logs ARRAY[INDEX]`."""
    client.patience_s = TAKEOVER_S
    screen = console(on_stderr=True)
    note(f"the output of elements is not printed; read it with `phalanx logs '{array}[0]'`")
    printed: set[int] = set()
    phase = _PhaseLine(client, screen.width)
    with screen.status(phase):
        for seen in client.watch(array):
            phase.job = seen
            failed = 0 if seen.elements is None else seen.elements.failed + seen.elements.timed_out
            if failed <= len(printed):
                continue
            for element in client.elements(array, never_ran=False):
                if element.phase in _UNSUCCESSFUL and element.index not in printed:
                    printed.add(element.index)
                    line = f"element {element.index} {element.phase}: {element.cause}"
                    screen.print(Text.assemble((visible(line), "red")))


@contextmanager
def _stops_printed(client: "Client", job: str, out: "Console") -> Iterator[None]:
    """Print why an attempt stops, what is lost, and when the next one begins, as it happens."""
    reader = threading.Thread(target=_print_stops, args=(client, job, out), daemon=True)
    reader.start()
    yield
    reader.join(_LAST_EVENTS_S)


def _print_stops(client: "Client", job: str, out: "Console") -> None:
    import httpx  # noqa: PLC0415

    from phalanx.client.errors import PhalanxError  # noqa: PLC0415
    from phalanx.wire.event_text import sentence, style  # noqa: PLC0415

    # The output is what matters. The client is closed when the command ends.
    with suppress(PhalanxError, httpx.HTTPError, RuntimeError):
        for event in client.events(job, follow=True):
            match event:
                case (
                    records.JobEvicted()
                    | records.GangStopping()
                    | records.GangStopped(outcome=Phase.PENDING)
                    | records.ReservationLost()
                    | records.RetryDelayed()
                    | records.WorkLost()
                ):
                    line = Text.assemble(("event: ", "dim"), (sentence(event), style(event)))
                    out.print(line)


def _watch(
    client: "Client",
    job: str,
    is_enough: "Callable[[JobDetail], bool]",
    timeout_s: float | None = None,
) -> "JobDetail":
    screen = console(on_stderr=True)
    if not screen.is_terminal or is_quiet():
        return client.wait(job, timeout_s=timeout_s)
    phase = _PhaseLine(client, screen.width)
    with screen.status(phase):
        for seen in client.watch(job, timeout_s=timeout_s):
            phase.job = seen
            if is_enough(seen):
                break
    return seen


class _PhaseLine:
    """The phase of a job beside a spinner; while no server answers, that instead."""

    def __init__(self, client: "Client", width: int) -> None:
        self._client = client
        self._width = width
        self.job: JobDetail | None = None  #: as it was seen last

    def __rich__(self) -> Text:
        if silence := silence_text(self._client):
            return Text(silence, style="yellow")
        return Text() if self.job is None else _phase_text(self.job, self._width)


def _phase_text(job: "JobDetail", width: int) -> Text:
    if job.elements is not None:
        detail = formatting.element_counts(job.elements)
        if job.phase is Phase.PENDING:
            detail += f"; {formatting.reason_text(job)}"
    elif job.phase is Phase.RUNNING and job.progress is not None:
        detail = progress_line(job.progress, width - _BEFORE_DETAIL)
    elif job.phase is Phase.RUNNING:
        detail = formatting.task_counts(job.counts)
    else:
        detail = formatting.reason_text(job)
    return Text.assemble(formatting.styled(job.phase), visible(f": {detail}") if detail else "")


def status_of(job: "JobDetail") -> Status:
    """The exit status for a job that has ended."""
    return Status.OK if job.phase is Phase.DONE else Status.UNSUCCESSFUL


def print_end(job: "JobDetail", name: str = "job") -> None:
    """Print how the job ended, and after how long, to standard error."""
    if is_quiet():
        return
    took = ""
    if job.finished_at is not None:
        duration = formatting.parse_time(job.finished_at) - formatting.parse_time(job.created_at)
        took = f" after {short_duration(duration.total_seconds())}"
    reason = formatting.reason_text(job)
    end = Text.assemble(f"{name} ", formatting.styled(job.phase), took)
    screen = console(on_stderr=True)
    screen.print(end.append(f": {reason}" if reason else ""))
    if job.elements is not None and job.phase is not Phase.DONE:
        say(f"list its elements with `phalanx jobs {job.name}`", err=True)
        say(f"run those that failed again with `phalanx retry {job.name} --failed`", err=True)
