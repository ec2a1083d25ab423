"""Crons as they are shown. Times are RFC 3339 in UTC."""

from typing import Any

import msgspec

from phalanx.core.model import Phase


class RunView(msgspec.Struct, frozen=True):
    job: str
    name: str
    due_at: str
    phase: Phase | None  #: how it ended; null while it has not


class LastView(msgspec.Struct, frozen=True):
    """What became of the last time that it was due."""

    due_at: str
    outcome: str  #: `started`, or why not
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
    next_at: str | None  #: null while it is paused
    last: LastView | None
    runs: tuple[RunView, ...]  #: the unfinished, and the last that ended
    spec: dict[str, Any]  #: in the native form
    owner: str = ""
    replacing_at: str | None = None  #: a run that was due then starts when the old one is gone
    warnings: tuple[dict[str, Any], ...] = ()  #: in the answer to a submission
