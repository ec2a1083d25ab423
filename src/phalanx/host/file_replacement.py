"""Whole-file replacement: a reader finds the old content or the new, never a part of it."""

import os
from pathlib import Path
from uuid import uuid4

TEMPORARY = ".new"  #: ends the name of a file until it is complete


def replace_file(path: Path, data: bytes, *, durable: bool) -> None:
    """Replace the content of a file, with mode 0600. If `durable`, the new content survives a crash
    of the machine from then on.

    Raises OSError; then the file is as it was, and no other file is left.
    """
    new = path.with_name(f"{path.name}.{uuid4().hex}{TEMPORARY}")
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            write_all(file, data)
            if durable:
                os.fsync(file)
        finally:
            os.close(file)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    if durable:
        _sync_folder(path.parent)


def write_private(path: Path, text: str) -> None:
    """Replace a file durably. Only its owner can read it, and a new directory of it.

    Raises OSError.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, text.encode(), durable=True)


def write_all(file: int, data: bytes) -> None:
    """Write all bytes: a full disk may take some of them first, and refuse only the rest.

    Raises OSError; then an unknown part has been written.
    """
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
