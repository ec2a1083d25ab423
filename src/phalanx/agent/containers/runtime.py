"""The container runtime of this machine: podman, with what it needs to run containers as root."""

import os
import shutil
from pathlib import Path

import msgspec

#: Where Debian, Fedora and others put what podman starts; it is not in the PATH.
_FOLDERS = ":".join(("/usr/libexec/podman", "/usr/lib/podman", "/usr/local/libexec/podman"))
#: The first one that is installed runs the containers. crun needs control groups of version 2.
_OCI_RUNTIMES = ("runc", "crun")

_APPARMOR = Path("/sys/module/apparmor/parameters/enabled")


class NoRuntime(Exception):  # noqa: N818
    """This machine cannot run containers; the message says what is missing."""


class ContainerRuntime(msgspec.Struct, frozen=True):
    podman: str
    oci_runtime: str

    def command(self, *words: str, oci_runtime: str | None = None) -> tuple[str, ...]:
        """A command line of podman."""
        runtime = oci_runtime or self.oci_runtime
        return (self.podman, "--runtime", runtime, "--cgroup-manager=cgroupfs", *words)


def find_runtime() -> ContainerRuntime:
    """The runtime of this machine. Starts no process. Raises NoRuntime."""
    podman = shutil.which("podman")
    if podman is None:
        raise NoRuntime("podman is not installed")
    if os.geteuid() != 0:
        raise NoRuntime("containers need a worker that runs as root")
    oci_runtime = next(filter(None, map(_find, _OCI_RUNTIMES)), None)
    if oci_runtime is None:
        raise NoRuntime(f"neither {' nor '.join(_OCI_RUNTIMES)} is installed")
    for program in ("conmon", "catatonit"):
        if _find(program) is None:
            raise NoRuntime(f"{program} is not installed")
    return ContainerRuntime(podman, oci_runtime)


def _find(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path=_FOLDERS)


def podman_environment() -> dict[str, str]:
    """The variables for podman itself, without those of the worker and of its service manager."""
    own = os.environ.items()
    return {k: v for k, v in own if not k.startswith("PHALANX_") and k != "NOTIFY_SOCKET"}


def has_apparmor() -> bool:
    """Whether AppArmor is enabled on this machine."""
    try:
        return _APPARMOR.read_text("ascii").startswith("Y")
    except OSError:
        return False


class ContainerMount(msgspec.Struct, frozen=True):
    """A folder of the worker that is in every container."""

    source: Path
    target: Path
    read_only: bool = False


class ContainerPolicy(msgspec.Struct, frozen=True):
    """The operator's settings on containers."""

    runtime: ContainerRuntime
    mounts: tuple[ContainerMount, ...] = ()
    allow_privileged: bool = False  #: tasks may ask for capabilities, privileges and any user
    has_apparmor: bool = False  #: AppArmor confines the containers of this machine
    has_gpus: bool = False  #: the GPUs of the worker are real: a container gets their devices
