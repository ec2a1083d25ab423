"""The files of the dashboard, read from the package once, with their types and ETags.

The page names its files below a folder that is named after the content of all of them. Browsers
keep them for ever, and an upgrade has another folder. Modules are part of the scripts that import
them.
"""

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
    media_type: str
    etag: str


@cache
def dashboard_files() -> dict[str, DashboardFile]:
    """By path, such as `js/main.js`."""
    files = _files_of_page()
    folder = f'"/dashboard/{dashboard_version()}/'.encode()
    html = files[INDEX].content.replace(b'"/dashboard/', folder)
    return files | {INDEX: _file(html, files[INDEX].media_type)}


@cache
def dashboard_version() -> str:
    """The name of the folder that the page names its files in."""
    etags = "".join(file.etag for _, file in sorted(_files_of_page().items()))
    return hashlib.sha256(etags.encode()).hexdigest()[:16]


@cache
def _files_of_page() -> dict[str, DashboardFile]:
    stored = dict(_below(resources.files("phalanx.dashboard") / "static", ""))
    modules = {path: file.content.decode() for path, file in stored.items() if _is_module(path)}
    scripts = {
        path: _file(script(path, modules).encode(), stored[path].media_type) for path in _SCRIPTS
    }
    return {path: file for path, file in stored.items() if not _is_module(path)} | scripts


def _is_module(path: str) -> bool:
    return path.endswith(".js")


def _file(content: bytes, media_type: str) -> DashboardFile:
    etag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
    return DashboardFile(content, media_type, etag)


def _below(folder: Traversable, prefix: str) -> list[tuple[str, DashboardFile]]:
    files: list[tuple[str, DashboardFile]] = []
    for each in folder.iterdir():
        path = prefix + each.name
        if each.is_dir():
            files += _below(each, f"{path}/")
        elif (media_type := _TYPES.get(each.name.rpartition(".")[2])) is not None:
            files.append((path, _file(each.read_bytes(), media_type)))
    return files
