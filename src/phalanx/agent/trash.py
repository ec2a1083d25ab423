"""Removes whole trees, however large or deep: they are moved to the trash folder at once, and from
there removed in a thread, a limited number of entries at a time.

No symbolic link is followed and no other file system is entered. Folders are moved to the top
before they are emptied, so the depth of a tree costs nothing.
"""

import asyncio
import os
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from uuid import uuid4

import structlog

from phalanx.agent.messages import AttemptKey
from phalanx.agent.state_dir import StateDir

#: Entries that are removed in one call: a worker that shuts down waits for one call at most.
_ENTRIES_PER_CALL = 1000
#: What is put into the trash within this time is removed together.
_COLLECT_S = 0.2
_REST_S = 1.0

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Trash:
    def __init__(self, state_dir: StateDir) -> None:
        self._state_dir = state_dir
        self._has_content = asyncio.Event()
        self._has_content.set()  # an earlier link may have left something
        self._stuck: set[str] = set()
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

    def put_attempt(self, key: AttemptKey, *, output: bool) -> None:
        """Remove the files of an attempt's task, and those of its output if it has written any."""
        self.put(self._state_dir.attempt(key))
        if output:
            self.put(self._state_dir.output_folder(key))

    def put(self, path: Path) -> None:
        """Remove an empty folder at once, and move anything else to the trash."""
        try:
            if _removed_if_empty(path):
                return
            self._state_dir.discard(path)
        except FileNotFoundError:
            return
        except OSError as error:
            self._log.warning("cannot remove files of a task", path=str(path), error=str(error))
            return
        self._has_content.set()

    async def run(self) -> None:
        """Empty the trash whenever something was put there."""
        while True:
            await self._has_content.wait()
            await asyncio.sleep(_COLLECT_S)
            self._has_content.clear()
            while await asyncio.to_thread(self.remove_some):
                pass

    def remove_rest(self) -> None:
        """Empty the trash before the worker exits, as far as a second allows."""
        until = time.monotonic() + _REST_S
        while time.monotonic() < until and self.remove_some():
            pass

    def remove_some(self, limit: int = _ENTRIES_PER_CALL) -> bool:
        """Remove a limited number of entries; whether there may be more."""
        try:
            top = os.open(self._state_dir.trash, _FOLDER)
        except OSError:
            return False
        try:
            with os.scandir(top) as entries:
                names = [entry.name for entry in islice(entries, limit + len(self._stuck))]
            for name in names:
                if name in self._stuck:
                    continue
                try:
                    limit -= _remove(top, name, limit)
                except FileNotFoundError:
                    continue  # the worker shuts down, and another thread has removed it
                except OSError as error:
                    self._stuck.add(name)  # the next link tries it again
                    self._log.warning(
                        "cannot remove files of a task", path=name, error=error.strerror
                    )
                if limit <= 0:
                    return True
            return bool(set(names) - self._stuck)
        finally:
            os.close(top)


def _removed_if_empty(path: Path) -> bool:
    """Remove an empty folder: most tasks leave no file. Raises FileNotFoundError."""
    try:
        path.rmdir()
    except FileNotFoundError:
        raise
    except OSError:
        return False
    return True


def _remove(top: int, name: str, limit: int) -> int:
    """Remove a file, or a limited number of entries of a folder; return how many. Raises OSError.

    Subfolders are moved to the top, to be emptied later.
    """
    try:
        os.unlink(name, dir_fd=top)
    except IsADirectoryError:
        folder = _open_folder(top, name)
    else:
        return 1
    removed = 0
    errors: list[OSError] = []
    try:
        with os.scandir(folder) as entries:
            for entry in islice(entries, limit):
                removed += 1
                try:
                    _remove_entry(top, folder, entry)
                except OSError as error:
                    errors.append(error)
    finally:
        os.close(folder)
    if errors:
        raise errors[0]
    if removed < limit:
        os.rmdir(name, dir_fd=top)
        removed += 1
    return removed


def _remove_entry(top: int, folder: int, entry: os.DirEntry[str]) -> None:
    if entry.is_dir(follow_symlinks=False):
        _make_accessible(folder, entry.name)
        os.rename(entry.name, uuid4().hex, src_dir_fd=folder, dst_dir_fd=top)
    else:
        os.unlink(entry.name, dir_fd=folder)


def _open_folder(top: int, name: str) -> int:
    _make_accessible(top, name)
    return os.open(name, _FOLDER, dir_fd=top)


def _make_accessible(parent: int, name: str) -> None:
    """Give the owner every permission on a folder, which its task may have taken away."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if os.fstat(handle).st_mode & 0o700 != 0o700:
            with suppress(PermissionError):
                os.chmod(f"/proc/self/fd/{handle}", 0o700)  # noqa: PTH101
    finally:
        os.close(handle)
