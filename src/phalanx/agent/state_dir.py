"""The layout of a worker's state directory.

Each attempt has a folder for the files that its task writes, and one for its output. Only the first
is known to the task.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from phalanx.agent.messages import AttemptKey, attempt_name
from phalanx.agent.task_files import TaskFile, open_file, open_folder
from phalanx.host.file_replacement import TEMPORARY, write_all

PROGRESS = "progress"
#: The rules for values of the progress file.
WATCH = "watch.json"
CHECKPOINT_IN = "checkpoint.in"
CHECKPOINT_OUT = "checkpoint.out"
#: An attempt has two files of output at a time.
_MOST_OUTPUT_FILES = 16
_MOST_OFFSET_DIGITS = 18
#: No file of ours is larger; the journal is rewritten long before.
_LARGEST_BYTES = 256 * 1024**2


class OutputFile(NamedTuple):
    """A file with a part of an attempt's output."""

    path: Path
    offset: int  #: where the part begins in the whole output; it is the file's name
    size_bytes: int = 0

    @property
    def end(self) -> int:
        """Where the part ends in the whole output."""
        return self.offset + self.size_bytes


class StateDir:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._passage_mode = 0o700  # of the folders above those of attempts
        self.attempts = path / "attempts"
        self.output = path / "output"
        self.containers = path / "containers"  #: exists once the worker has created a container
        self.trash = path / "trash"
        self.socket = path / "spawner.sock"
        self.spawner_lock = path / "spawner.lock"
        self.link_lock = path / "link.lock"
        self.journal = path / "journal"
        self.cgroup_file = path / "cgroup"
        self.certificate_file = path / "certificate.pem"
        self.credential_file = path / "credential"
        self.lease_file = path / "lease"
        self.uid_file = path / "uids"
        self.cluster_id_file = path / "cluster-id"
        self.spawner_log = path / "spawner.log"
        #: For PYTHONPATH: has this package and nothing else, so that any Python can import it.
        self.python = path / "python"

    def create(self, *, for_users: bool = False) -> None:
        """Create the directory and its missing parents, closed to other users: it holds output and
        the spawner's socket.

        `for_users` lets tasks of other users pass through to their own folders. Raises OSError.
        """
        self._passage_mode = 0o711 if for_users else 0o700
        for parent in reversed([each for each in self.path.parents if not each.exists()]):
            parent.mkdir(mode=0o700, exist_ok=True)
            parent.chmod(self._passage_mode)
        self.path.mkdir(mode=0o700, exist_ok=True)
        for folder in (self.trash, self.output):
            self._ensure_folder(folder)
            folder.chmod(0o700)
        self._ensure_passage()
        self._link_package()
        self.discard_unusable()

    def discard_unusable(self) -> None:
        """Discard what stands in place of a file of ours: a task of the same user can put it there.

        Raises OSError.
        """
        locks = (self.spawner_lock, self.link_lock)
        files = (*locks, self.journal, self.lease_file, self.cgroup_file, self.cluster_id_file)
        for path in (*files, self.spawner_log):
            if not _is_usable(path, stat.S_IFREG):
                self.discard(path)
        if not _is_usable(self.socket, stat.S_IFSOCK):
            self.discard(self.socket)
        for path in self.path.glob(f"*{TEMPORARY}"):
            self.discard(path)  # of a process that was killed while it wrote

    def _link_package(self) -> None:
        """Put this package into the folder for PYTHONPATH. Raises OSError."""
        self._create_folder(self.python)
        (self.python / "phalanx").symlink_to(Path(__file__).parents[1])
        self.python.chmod(0o700 if self._passage_mode == 0o700 else 0o755)

    def _ensure_passage(self) -> None:
        """Create the folder of the attempts if there is none, and let their users pass.

        Raises OSError.
        """
        passage = stat.S_IFDIR | self._passage_mode
        if _mode(self.attempts) != passage:
            self._ensure_folder(self.attempts)
            self.attempts.chmod(self._passage_mode)
        if _mode(self.path) != passage:
            self.path.chmod(self._passage_mode)

    def _ensure_folder(self, path: Path) -> None:
        """Create a folder if there is none, in place of anything else. Raises OSError."""
        try:
            if stat.S_ISDIR(path.lstat().st_mode):
                return
        except FileNotFoundError:
            pass
        self._create_folder(path)

    def _create_folder(self, path: Path) -> None:
        """Create a folder, in place of anything that has its name. Raises OSError."""
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            self.discard(path)
            path.mkdir(mode=0o700)

    # The files of tasks

    def create_attempt(self, key: AttemptKey) -> None:
        """Create the folder for the files of an attempt's task, empty. Raises OSError."""
        self._ensure_passage()
        self._create_folder(self.attempt(key))

    def give_attempt(self, key: AttemptKey, uid: int, gid: int) -> None:
        """Give the folder and its files to the user of the task. Raises OSError.

        Until then the folder was open to the agent alone, so all its content is the agent's.
        """
        folder = self.attempt(key)
        for path in (*folder.iterdir(), folder):
            os.chown(path, uid, gid, follow_symlinks=False)

    def open_attempt_to_all(self, key: AttemptKey) -> None:
        """Let a user that is not known before the start write to the folder of a container.

        No other user can reach it, because the state directory is closed to them. Raises OSError.
        """
        self.attempt(key).chmod(0o777)

    def attempt(self, key: AttemptKey) -> Path:
        return self.attempts / attempt_name(key)

    def task_file(self, key: AttemptKey, name: str) -> str:
        """The path of a file that an attempt's task reads or writes."""
        return f"{self.attempts}/{attempt_name(key)}/{name}"

    def has_task_files(self, key: AttemptKey) -> bool:
        """Whether there is anything in the folder of an attempt, or something else in its place."""
        try:
            with os.scandir(f"{self.attempts}/{attempt_name(key)}") as entries:
                return next(entries, None) is not None
        except OSError:
            return True

    def open_task_file(self, key: AttemptKey, name: str) -> TaskFile:
        """Raises FileNotFoundError, UnusableFile."""
        return open_file(self.path, self.attempts.name, attempt_name(key), name)

    def write_task_file(self, key: AttemptKey, name: str, data: bytes) -> None:
        """Write a file for an attempt's task, before the task starts. Raises OSError."""
        folder = self.open_attempt(key)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(name, flags, 0o600, dir_fd=folder)
            try:
                write_all(file, data)
            finally:
                os.close(file)
        finally:
            os.close(folder)

    def open_attempt(self, key: AttemptKey) -> int:
        """A descriptor of the folder for the files of an attempt's task. Raises OSError."""
        return open_folder(self.path, self.attempts.name, attempt_name(key))

    # The output of attempts

    def output_folder(self, key: AttemptKey) -> Path:
        return self.output / attempt_name(key)

    def create_output_file(self, key: AttemptKey, offset: int) -> tuple[OutputFile, int]:
        """Create the file for the output from the offset on, and open it. Raises OSError."""
        folder = self.output_folder(key)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = OutputFile(folder / str(offset), offset)
        try:
            return file, os.open(file.path, flags, 0o600)
        except FileNotFoundError:
            self._ensure_folder(self.output)
            folder.mkdir(mode=0o700, exist_ok=True)
            return file, os.open(file.path, flags, 0o600)

    def output_files(self, key: AttemptKey) -> list[OutputFile]:
        """The output files of an attempt, ordered by their offset."""
        folder = self.output_folder(key)
        try:
            with os.scandir(folder) as entries:
                files = [
                    OutputFile(folder / entry.name, int(entry.name), _size(entry))
                    for entry in islice(entries, _MOST_OUTPUT_FILES)
                    if _is_offset(entry.name)
                ]
        except OSError:
            return []
        return sorted(files, key=lambda file: file.offset)

    def open_output(self, key: AttemptKey, file: OutputFile) -> TaskFile:
        """Raises FileNotFoundError, UnusableFile."""
        return open_file(self.path, self.output.name, attempt_name(key), file.path.name)

    # What is left

    def leftovers(self, known: set[AttemptKey]) -> list[Path]:
        """What is left of attempts that are not known, after a crash. Raises OSError."""
        names = set(map(attempt_name, known))
        left: list[Path] = []
        for folder in (self.attempts, self.output):
            with os.scandir(folder) as entries:
                left += (Path(entry.path) for entry in entries if entry.name not in names)
        return left

    def discard(self, path: Path) -> None:
        """Move a file or a folder to the trash, which the link empties. Raises OSError."""
        target = self.trash / uuid4().hex
        try:
            path.rename(target)
        except FileNotFoundError:
            self.trash.mkdir(mode=0o700, exist_ok=True)  # a task may have removed it
            path.rename(target)


def _mode(path: Path) -> int:
    """The kind and the permissions of what is at the path; 0 if there is nothing."""
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return 0


def _is_usable(path: Path, kind: int) -> bool:
    """Whether there is nothing at the path, or a file of the kind and of a size that we read."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return True
    return stat.S_IFMT(status.st_mode) == kind and status.st_size <= _LARGEST_BYTES


def _size(entry: os.DirEntry[str]) -> int:
    """The size of a file; 0 if it was removed since it was listed."""
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


def _is_offset(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) <= _MOST_OFFSET_DIGITS


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A short name for a path, valid in the block: socket names are limited to 108 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
