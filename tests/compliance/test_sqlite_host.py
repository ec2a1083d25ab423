"""SQLite requires a file system that only one machine uses, and a lock."""

from pathlib import Path

import pytest

from phalanx.store.protocol import StoreError
from phalanx.store.sqlite_host import HostLock, file_system_of, require_local_file_system

MOUNTS = r"""
/dev/vda / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
filer:/home /home nfs4 rw,vers=4.2 0 0
/dev/vdb /home/local xfs rw 0 0
//nas/share /mnt/the\040share cifs rw 0 0
ada@host:/ /mnt/far fuse.sshfs rw 0 0
mgs:/scratch /scratch lustre rw 0 0
tmpfs /scratch tmpfs rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/phalanx/phalanx.db", "ext4"),
        ("/home/ada/phalanx.db", "nfs4"),
        ("/home/local/phalanx.db", "xfs"),
        ("/homely/phalanx.db", "ext4"),
        ("/mnt/the share/phalanx.db", "cifs"),
        ("/mnt/far/deep/down/phalanx.db", "fuse.sshfs"),
        ("/scratch/phalanx.db", "tmpfs"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_the_nearest_mount(path: str, kind: str) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind


def test_without_mounts_every_path_is_accepted() -> None:
    assert file_system_of(Path("/x"), "") is None
    require_local_file_system(Path("/x"), "")


@pytest.mark.parametrize("path", ["/home/ada/p.db", "/mnt/the share/p.db", "/mnt/far/p.db"])
def test_a_network_file_system_is_refused_with_the_cure(path: str) -> None:
    with pytest.raises(StoreError, match=r"network file system .* local disk, or use PostgreSQL"):
        require_local_file_system(Path(path), MOUNTS)


@pytest.mark.parametrize("path", ["/var/p.db", "/home/local/p.db", "/scratch/p.db"])
def test_a_local_file_system_is_accepted(path: str) -> None:
    require_local_file_system(Path(path), MOUNTS)


def test_a_host_lock_has_one_holder(tmp_path: Path) -> None:
    first, second = HostLock(tmp_path / "lock"), HostLock(tmp_path / "lock")
    assert first.acquire()
    assert first.acquire()
    assert not second.acquire()
    first.release()
    first.release()
    assert not first.held
    assert second.acquire()
    second.release()
