"""Endpoints of external services: which URLs are in a text, and which of them a job declares."""

import re

from phalanx.core.spec.fields import refusal, shown, text

_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?:[^\s/@]*@)?"
    r"(?P<host>\[[0-9a-f:.]+\]|[^\s/:?#,;\"'\])}]+)(?::(?P<port>[0-9]+))?",
    re.IGNORECASE,
)
#: Hosts of the machine that the task runs on.
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|\[::1\]|0\.0\.0\.0", re.IGNORECASE)
#: What stands in a value before the task starts, such as `$(hosts.ps)` or `${NAME}`.
_REFERENCE = "$"


def endpoint(value: object) -> str:
    """The URL of a service, without its path and credentials: `https://s3.example.com`."""
    url = text(value)
    match = _URL.match(url)
    if match is None:
        raise refusal(f"is {shown(url)}; write a URL, like https://s3.example.com")
    return _endpoint(match)


def endpoints_in(value: str) -> list[str]:
    """The endpoints of the URLs in a text that are outside the machine of the task."""
    return [
        _endpoint(match)
        for match in _URL.finditer(value)
        if match["scheme"].lower() != "file"
        and _REFERENCE not in match["host"]
        and not _LOOPBACK.fullmatch(match["host"])
    ]


def _endpoint(match: re.Match[str]) -> str:
    port = f":{match['port']}" if match["port"] else ""
    return f"{match['scheme']}://{match['host']}{port}".lower()
