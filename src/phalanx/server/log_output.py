"""Where the log lines of a process go: to standard error, as text or JSON."""

import logging
import re
import sys
from contextlib import suppress
from typing import TextIO, cast

import msgspec
import structlog

from phalanx.server.options import LogFormat, LogLevel

Logger = structlog.typing.FilteringBoundLogger


class _LossyStream:
    """A stream that drops what cannot be written: a full disk or a closed pipe is no failure."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.colours = stream.isatty()

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


class TextRenderer:
    """Renders lines as the console renderer does without colours, in a fraction of its CPU time.

    A task causes several lines, so the time counts.
    """

    #: Lines with one of these keys are rare, and are left to the console renderer.
    _RARE = frozenset({"stack", "exception", "exc_info", "logger", "logger_name"})
    _QUOTED = re.compile(r"""[ \t=\r\n"']""")

    def __init__(self, console: structlog.dev.ConsoleRenderer) -> None:
        self._console = console

    def __call__(
        self, logger: structlog.typing.WrappedLogger, name: str, line: structlog.typing.EventDict
    ) -> str:
        if not self._RARE.isdisjoint(line):
            return self._console(logger, name, line)
        time, level, event = line.pop("timestamp"), line.pop("level"), line.pop("event")
        words = [f"{time} [{level:<9}] {event!s:<30}"]
        words += [f"{key}={self._value(value)}" for key, value in line.items()]
        return " ".join(words).rstrip(" ")

    def _value(self, value: object) -> str:
        if isinstance(value, str) and not self._QUOTED.search(value):
            return value
        return repr(value)


def _text_renderer(*, colours: bool) -> structlog.typing.Processor:
    console = structlog.dev.ConsoleRenderer(
        colors=colours,
        sort_keys=False,
        # The default shows the values of variables, which may be secrets and tokens.
        exception_formatter=structlog.dev.plain_traceback,
    )
    return console if colours else TextRenderer(console)


def set_up(form: LogFormat, level: LogLevel) -> None:
    """Send all log lines of the process, its own and those of libraries, to standard error."""
    stream = _LossyStream(sys.stderr)
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(_json)]
        if form is LogFormat.JSON
        else [_text_renderer(colours=stream.colours)]
    )
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", stream)),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Below warnings, lines of libraries do not help an operator.
    root.setLevel(max(number, logging.WARNING) if number > logging.DEBUG else number)


def _json(value: object, **_: object) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
