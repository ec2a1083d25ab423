"""The files of secrets: written to a tmpfs, so that they are never on a disk, one folder for each
attempt, readable by the user of its task alone.
"""

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from phalanx.agent.messages import AttemptKey, TaskUser, attempt_name

#: The variable with the folder of a task's files of secrets.
FOLDER_VARIABLE = "PHALANX_SECRETS"
_MOUNT_TABLE = Path("/proc/self/mounts")
_MEMORY = ("tmpfs", "ramfs")


class NoSecretFiles(Exception):  # noqa: N818
    """The worker cannot write files of secrets; the message says why."""


class SecretFiles:
    def __init__(self, state_dir: Path, parents: Iterable[Path] | None = None) -> None:
        """`state_dir` identifies the worker. `parents` are folders to try; the first on a tmpfs
        is used."""
        self._parents = _usual_parents() if parents is None else tuple(parents)
        digest = hashlib.sha256(os.fsencode(state_dir)).hexdigest()
        self._name = f"phalanx-{os.geteuid()}-{digest[:16]}"
        self._folder: Path | None = None
        self._written: set[AttemptKey] = set()

    def write(self, key: AttemptKey, files: Mapping[str, str], user: TaskUser | None) -> Path:
        """Write the files of an attempt and return their folder. Raises NoSecretFiles."""
        try:
            folder = self._own_folder(is_shared=user is not None) / attempt_name(key)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
            self._written.add(key)
            for name, text in files.items():
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                file = os.open(folder / name, flags, 0o400)
                with os.fdopen(file, "w", encoding="utf-8", newline="") as stream:
                    stream.write(text)
            if user is not None:
                for path in (*folder.iterdir(), folder):
                    os.chown(path, user.uid, user.gid, follow_symlinks=False)
        except OSError as error:
            self.remove(key)
            raise NoSecretFiles(
                f"the worker cannot write the files of secrets: {error.strerror}"
            ) from None
        return folder

    def remove(self, key: AttemptKey) -> None:
        """Remove the files of an attempt that has ended or was not started."""
        if key in self._written and self._folder is not None:
            self._written.discard(key)
            shutil.rmtree(self._folder / attempt_name(key), ignore_errors=True)
            if not self._written:
                _remove_if_empty(self._folder)

    def remove_except(self, attempts: Iterable[AttemptKey]) -> None:
        """Remove what an earlier process of this worker has left of other attempts."""
        kept = {attempt_name(key): key for key in attempts}
        for parent in self._parents:
            folder = parent / self._name
            if not _is_ours(folder):
                continue
            self._folder = self._folder or folder
            for path in folder.iterdir():
                if path.name in kept:
                    self._written.add(kept[path.name])
                else:
                    shutil.rmtree(path, ignore_errors=True)
            _remove_if_empty(folder)

    def _own_folder(self, *, is_shared: bool) -> Path:
        """The worker's folder on a tmpfs. Other users can pass it if tasks are theirs."""
        if self._folder is None or not _is_ours(self._folder):
            self._folder = self._create()
        self._folder.chmod(0o711 if is_shared else 0o700)
        return self._folder

    def _create(self) -> Path:
        in_memory = [parent for parent in self._parents if _is_in_memory(parent)]
        for parent in in_memory:
            folder = parent / self._name
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                if not _is_ours(folder):
                    continue
            except OSError:
                continue
            return folder
        tried = ", ".join(str(parent) for parent in self._parents)
        raise NoSecretFiles(
            f"the worker has no tmpfs for files of secrets (it tried {tried}); mount one, or use"
            " variables instead of secret_files"
        )


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _usual_parents() -> tuple[Path, ...]:
    own = os.environ.get("XDG_RUNTIME_DIR")
    parents = [Path(own)] if own else []
    if os.geteuid() == 0:
        parents = [Path("/run")]  # a session's folder is removed when its user logs out
    return (*parents, Path("/dev/shm"))  # noqa: S108


def _is_ours(folder: Path) -> bool:
    """Whether it is a folder of this user: /dev/shm is open to all users."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _is_in_memory(folder: Path) -> bool:
    """Whether the file system of a folder is kept in memory."""
    try:
        path = folder.resolve(strict=True)
        lines = _MOUNT_TABLE.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return False
    kind, longest = "", -1
    for line in lines:
        words = line.split(" ")
        mount = Path(words[1].encode("latin-1", "replace").decode("unicode_escape"))
        if path.is_relative_to(mount) and len(mount.parts) >= longest:
            kind, longest = words[2], len(mount.parts)
    return kind in _MEMORY
