"""The screen of `phalanx top`: what it shows, and what each key changes. Makes no requests."""

from collections import Counter
from collections.abc import Sequence
from enum import Enum

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from phalanx.cli import formatting
from phalanx.cli.jobs import jobs_table
from phalanx.cli.queues import queues_table
from phalanx.cli.workers import workers_table
from phalanx.core.model import Phase
from phalanx.wire.jobs import JobView
from phalanx.wire.workers import QueueView, WorkerView

_PHASES = (Phase.RUNNING, Phase.STARTING, Phase.STOPPING, Phase.PENDING)
#: Lines of a screen that are not rows: headings, summary, keys, and the gaps between tables.
_FIXED_LINES = 11
_MIN_ROWS = 5
_KEYS = "q quit  s sort  / filter  ↑↓ select  enter output"


class SortKey(Enum):
    PHASE = "phase"
    NEWEST = "newest first"
    PRIORITY = "priority"
    QUEUE = "queue"
    NAME = "name"


class ClusterOverview(msgspec.Struct, frozen=True):
    """The cluster at one moment."""

    workers: list[WorkerView]
    queues: list[QueueView]
    jobs: list[JobView]  #: the unfinished ones


class TopScreen:
    """What the user has chosen: the order, the filter, the selected job, and its logs."""

    def __init__(self, overview: ClusterOverview) -> None:
        self.overview = overview
        self.sort = SortKey.PHASE
        self.filter = ""
        self.is_filter_open = False  #: whether keys are added to the filter
        self.selected: str | None = None
        self.logs_of: str | None = None  #: the job whose output is shown
        self.lines: Sequence[str] = ()
        self.is_over = False

    def press(self, key: str) -> None:
        if self.is_filter_open:
            self._edit_filter(key)
        elif self.logs_of is not None:
            if key in ("q", "escape", "enter"):
                self.logs_of = None
        elif key == "q":
            self.is_over = True
        elif key == "s":
            keys = list(SortKey)
            self.sort = keys[(keys.index(self.sort) + 1) % len(keys)]
        elif key == "/":
            self.filter, self.is_filter_open = "", True
        elif key == "escape":
            self.filter = ""
        elif key in ("up", "k", "down", "j"):
            self._move(-1 if key in ("up", "k") else 1)
        elif key in ("enter", "l"):
            self.logs_of, self.lines = self.selected, ()

    def _edit_filter(self, key: str) -> None:
        if key in ("enter", "escape"):
            self.is_filter_open = False
            self.filter = self.filter if key == "enter" else ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1:
            self.filter += key

    def _move(self, step: int) -> None:
        ids = [job.id for job in self.jobs()]
        if not ids:
            self.selected = None
        elif self.selected not in ids:
            self.selected = ids[0]
        else:
            at = ids.index(self.selected) + step
            self.selected = ids[max(0, min(at, len(ids) - 1))]

    def is_array(self, job: str) -> bool:
        return any(each.id == job and each.elements is not None for each in self.overview.jobs)

    def jobs(self) -> list[JobView]:
        """The jobs that match the filter, in their order."""
        words = self.filter.lower().split()
        matching = (
            job
            for job in self.overview.jobs
            if all(
                word in f"{job.id} {job.namespace}/{job.name} {job.queue} {job.phase}".lower()
                for word in words
            )
        )
        return sorted(matching, key=self._order)

    def _order(self, job: JobView) -> tuple[object, ...]:
        match self.sort:
            case SortKey.PHASE:
                return (_PHASES.index(job.phase),)
            case SortKey.NEWEST:
                return (-formatting.parse_time(job.created_at).timestamp(),)
            case SortKey.PRIORITY:
                return (-job.priority,)
            case SortKey.QUEUE:
                return (job.queue, _PHASES.index(job.phase))
            case SortKey.NAME:
                return (job.namespace, job.name)

    def frame(self, height: int, notice: str = "") -> Group:
        """The whole screen, with a notice in place of the keys."""
        if self.logs_of is not None:
            return self._logs_frame(height, notice)
        footer = Text(notice, style="yellow") if notice else self._footer()
        return Group(*self.parts(max(_MIN_ROWS, height - _FIXED_LINES)), footer)

    def parts(self, rows: int | None) -> list[RenderableType]:
        """The summary and the three tables, with at most `rows` rows together; None is no limit.

        Workers and queues take a third each at most; jobs take the remaining rows.
        """
        overview = self.overview
        third = None if rows is None else max(_MIN_ROWS, rows // 3)
        workers, queues = overview.workers[:third], overview.queues[:third]
        remaining = None if rows is None else max(_MIN_ROWS, rows - len(workers) - len(queues))
        jobs = self.jobs()
        shown = jobs[self._first(jobs, remaining) :][:remaining]
        parts: list[RenderableType] = [self._summary(), Text()]
        if workers:
            parts += [workers_table(workers), _omitted(len(overview.workers) - len(workers))]
        if queues:
            parts += [queues_table(queues), _omitted(len(overview.queues) - len(queues))]
        if shown:
            table = jobs_table(shown)
            for job, row in zip(shown, table.rows, strict=True):
                row.style = "reverse" if job.id == self.selected else ""
            parts += [table, _omitted(len(jobs) - len(shown))]
        elif self.filter:
            parts.append(Text("no job matches the filter", style="dim"))
        return parts

    def _first(self, jobs: Sequence[JobView], count: int | None) -> int:
        """The first job that is shown, so that the selected one is on the screen."""
        ids = [job.id for job in jobs]
        if count is None or self.selected not in ids:
            return 0
        return max(0, ids.index(self.selected) - count + 1)

    def _summary(self) -> Text:
        """`12:03:44  3 of 4 workers active  2 running, 1 pending`."""
        workers = self.overview.workers
        active = sum(worker.status == "active" for worker in workers)
        phases = Counter(job.phase for job in self.overview.jobs)
        counts = [
            Text(f"{phases[phase]} ") + formatting.styled(phase)
            for phase in _PHASES
            if phases[phase]
        ]
        return Text.assemble(
            (formatting.now().astimezone().strftime("%H:%M:%S"), "dim"),
            f"  {active} of {formatting.plural(len(workers), 'worker')} active  ",
            Text(", ").join(counts) if counts else "no unfinished jobs",
        )

    def _footer(self) -> Text:
        if self.is_filter_open:
            return Text(f"filter: {self.filter}▏ enter to apply, esc to clear")
        chosen = f"  by {self.sort.value}" + (f", filter {self.filter}" if self.filter else "")
        return Text.assemble((_KEYS, "dim"), chosen, no_wrap=True, overflow="ellipsis")

    def _logs_frame(self, height: int, notice: str) -> Group:
        of_array = self.is_array(self.logs_of or "")
        shown_of = f"{'elements' if of_array else 'output'} of {self.logs_of}"
        title = Text.assemble((shown_of, "bold"), ("  q back", "dim"), (f"  {notice}", "yellow"))
        room = max(1, height - 3)
        lines = list(self.lines)[:room] if of_array else list(self.lines)[-room:]
        shown = [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]
        return Group(title, Text(), *(shown or [Text("no output yet", style="dim")]))


def _omitted(count: int) -> Text:
    return Text(f"… and {count} more" if count else "", style="dim")
