"""The files of the dashboard, read from the package and compressed once, with types and ETags.

The page names its files below a folder that is named after the content of all of them. Browsers
keep them for ever, and an upgrade has another folder. Modules are part of the scripts that import
them.
"""

import gzip
import hashlib
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

from phalanx.dashboard.scripts import script

INDEX = "index.html"
#: A script with a policy of its own.
PROBE = "js/server-probe.js"
#: That of the page, and those of its workers.
_SCRIPTS = ("js/main.js", "js/stream-worker.js", PROBE)
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class DashboardFile(NamedTuple):
    content: bytes
    compressed: bytes  #: by gzip
    media_type: str
    etag: str


@cache
def dashboard_files() -> dict[str, DashboardFile]:
    """By path, such as `js/main.js`."""
    contents = _contents()
    folder = f'"/dashboard/{dashboard_version()}/'.encode()
    contents |= {INDEX: contents[INDEX].replace(b'"/dashboard/', folder)}
    return {path: _file(path, content) for path, content in contents.items()}


@cache
def dashboard_version() -> str:
    """The name of the folder that the page names its files in."""
    digests = [hashlib.sha256(content).digest() for _, content in sorted(_contents().items())]
    return hashlib.sha256(b"".join(digests)).hexdigest()[:16]


@cache
def _contents() -> dict[str, bytes]:
    stored = dict(_below(resources.files("phalanx.dashboard") / "static", ""))
    modules = {path: content.decode() for path, content in stored.items() if _is_module(path)}
    scripts = {path: script(path, modules).encode() for path in _SCRIPTS}
    return {path: content for path, content in stored.items() if not _is_module(path)} | scripts


def _is_module(path: str) -> bool:
    return path.endswith(".js")


def _file(path: str, content: bytes) -> DashboardFile:
    return DashboardFile(
        content,
        gzip.compress(content, compresslevel=6, mtime=0),
        _TYPES[_ending(path)],
        f'"{hashlib.sha256(content).hexdigest()[:24]}"',
    )


def _below(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    files: list[tuple[str, bytes]] = []
    for each in folder.iterdir():
        path = prefix + each.name
        if each.is_dir():
            files += _below(each, f"{path}/")
        elif _ending(path) in _TYPES:
            files.append((path, each.read_bytes()))
    return files


def _ending(path: str) -> str:
    return path.rpartition(".")[2]
