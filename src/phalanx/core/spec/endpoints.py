"""Endpoints of external services: which URLs, hosts and ports are in a text, and which of them a
job declares.
"""

import re
from collections.abc import Collection

from phalanx.core.spec.fields import refusal, shown, text

_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?:[^\s/@]*@)?"
    r"(?P<host>\[[0-9a-f:.]+\]|[^\s/:?#,;\"'\])}]+)(?::(?P<port>[0-9]+))?",
    re.IGNORECASE,
)
#: A host and a port without a scheme: `db.example.com:5432`. The name has a dot, because `train:7`
#: may be anything.
_HOST_AND_PORT = re.compile(
    r"(?<![\w.@:/-])(?P<host>(?:[0-9]{1,3}\.){3}[0-9]{1,3}|(?:[a-z0-9][a-z0-9-]*\.)+[a-z]{2,})"
    r":(?P<port>[0-9]{2,5})(?![\w.:-])",
    re.IGNORECASE,
)
#: The ports that URLs with these schemes mean.
_PORTS = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21", "ssh": "22"}
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
    """The endpoints in a text that are outside the machine of the task."""
    urls = [
        _endpoint(match)
        for match in _URL.finditer(value)
        if match["scheme"].lower() != "file"
        and _REFERENCE not in match["host"]
        and not _LOOPBACK.fullmatch(match["host"])
    ]
    rest = _URL.sub(" ", value) if "://" in value else value
    return urls + [
        f"{match['host']}:{match['port']}".lower()
        for match in _HOST_AND_PORT.finditer(rest)
        if not _LOOPBACK.fullmatch(match["host"])
    ]


def is_declared(endpoint: str, declared: Collection[str]) -> bool:
    """Whether an endpoint of a text is one that the job declares, under any scheme if the text has
    none."""
    if "://" in endpoint:
        return endpoint in declared
    return any(endpoint == _host_and_port(each) for each in declared)


def _host_and_port(url: str) -> str:
    scheme, _, host = url.partition("://")
    has_port = re.search(r":[0-9]+$", host) is not None
    return host if has_port else f"{host}:{_PORTS.get(scheme, '')}"


def _endpoint(match: re.Match[str]) -> str:
    port = f":{match['port']}" if match["port"] else ""
    return f"{match['scheme']}://{match['host']}{port}".lower()
