"""Views of crons. Times are RFC 3339 in UTC."""

from typing import Any

import msgspec

from phalanx.core.model import Phase


class RunView(msgspec.Struct, frozen=True):
    job: str
    name: str
    due_at: str
    phase: Phase | None  #: in which it ended; null while it is unfinished


class LastView(msgspec.Struct, frozen=True):
    """The outcome of the last time that the cron was due."""

    due_at: str
    outcome: str  #: `started`, or why it was not
    job: str | None


class CronView(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    namespace: str
    queue: str
    cron: str
    timezone: str
    concurrency: str
    paused: bool
    created_at: str
    next_at: str | None  #: null while the cron is paused
    last: LastView | None
    runs: tuple[RunView, ...]  #: the unfinished ones, and the latest that ended
    spec: dict[str, Any]  #: in the native form
    owner: str = ""
    replacing_at: str | None = None  #: the run due then starts when the unfinished one has stopped
    warnings: tuple[dict[str, Any], ...] = ()  #: in the answer to a submission
