"""The files of the dashboard, read from the package once, with their types and ETags."""

import hashlib
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

INDEX = "index.html"
#: A script with a policy of its own.
PROBE = "js/server-probe.js"
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
    """By path below `static/`, such as `js/main.js`."""
    return dict(_below(resources.files("phalanx.dashboard") / "static", ""))


def _below(folder: Traversable, prefix: str) -> list[tuple[str, DashboardFile]]:
    files: list[tuple[str, DashboardFile]] = []
    for each in folder.iterdir():
        path = prefix + each.name
        if each.is_dir():
            files += _below(each, f"{path}/")
        elif (media_type := _TYPES.get(each.name.rpartition(".")[2])) is not None:
            content = each.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
            files.append((path, DashboardFile(content, media_type, etag)))
    return files
