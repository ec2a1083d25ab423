"""Log lines as text: the quick renderer and structlog's console renderer agree."""

from typing import Any

import pytest
import structlog

from phalanx.server.log_output import TextRenderer

CONSOLE = structlog.dev.ConsoleRenderer(
    colors=False, sort_keys=False, exception_formatter=structlog.dev.plain_traceback
)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"gang_id": "j-7kq2m4xd", "gang_size": 4, "workers": ("w-1", "w-2")},
        {"why": "worker w-1 was lost", "cause": None, "share": 0.5, "empty": ""},
        {"quoted": "it's", "assigned": "a=b", "lines": "a\nb", "tab": "a\tb", "name": 'a"b'},
        {"logger": "uvicorn.error"},
        {"exception": "Traceback: an error"},
    ],
)
@pytest.mark.parametrize(
    "event", ["gang reserved", "an event whose name is longer than its column"]
)
def test_a_text_line_reads_as_structlog_writes_it(event: str, fields: dict[str, Any]) -> None:
    line = {**fields, "event": event, "level": "info", "timestamp": "2026-11-16T12:00:00Z"}
    assert TextRenderer(CONSOLE)(None, "info", dict(line)) == CONSOLE(None, "info", dict(line))
