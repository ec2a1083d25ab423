"""podman, with what it needs to run containers as root.

One command of podman creates and starts a container before the start barrier, with a wrapper of the
OCI runtime that does not start the program. After the barrier the OCI runtime itself starts it. A
command of podman takes longer than all that the OCI runtime does.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from phalanx.agent.containers.new_container import NewContainer
from phalanx.agent.containers.oci_wrapper import write_wrapper
from phalanx.agent.containers.runtime import NoRuntime
from phalanx.agent.containers.runtime_call import RuntimeCallError, call_runtime
from phalanx.agent.messages import ContainerCalls

#: Where Debian, Fedora and others put what podman starts; it is not in the PATH.
_FOLDERS = ":".join(("/usr/libexec/podman", "/usr/lib/podman", "/usr/local/libexec/podman"))
#: The first one that is installed runs the containers. crun needs control groups of version 2.
_OCI_RUNTIMES = ("runc", "crun")
#: Starts the container whose id is in a file.
_START = 'exec "$0" start "$(cat "$1")"'


def find_podman(state_dir: Path) -> "Podman":
    """podman for a worker with that state directory. Starts no process. Raises NoRuntime."""
    podman = shutil.which("podman")
    if podman is None:
        raise NoRuntime("podman is not installed")
    oci_runtime = next(filter(None, map(_find, _OCI_RUNTIMES)), None)
    if oci_runtime is None:
        raise NoRuntime(f"neither {' nor '.join(_OCI_RUNTIMES)} is installed")
    for program in ("conmon", "catatonit"):
        if _find(program) is None:
            raise NoRuntime(f"{program} is not installed")
    return Podman(podman, oci_runtime, state_dir / "containers")


def _find(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path=_FOLDERS)


class Podman(msgspec.Struct, frozen=True):
    program: str
    oci_runtime: str
    folder: Path  #: for its programs
    name: str = "podman"
    no_secret_variables: str = ""
    keeps_variables_until_start: bool = False
    is_installed_early: bool = False
    is_created_by_spawner: bool = True

    @property
    def _holding_runtime(self) -> Path:
        return self.folder / "podman-runtime"

    @property
    def _secret_runtime(self) -> Path:
        return self.folder / "podman-secret-runtime"

    def install(self) -> None:
        write_wrapper(self._holding_runtime, self.oci_runtime, holds_start=True)
        write_wrapper(self._secret_runtime, self.oci_runtime, adds_secrets=True, holds_start=True)

    def command(self, *words: str) -> tuple[str, ...]:
        return self._command(self.oci_runtime, *words)

    def _command(self, oci_runtime: str, *words: str) -> tuple[str, ...]:
        return (self.program, "--runtime", oci_runtime, "--cgroup-manager=cgroupfs", *words)

    def create(self, new: NewContainer) -> tuple[str, ...]:
        words = ["run", "--detach", "--name", new.name, "--replace", "--cidfile", str(new.id_file)]
        words += ["--conmon-pidfile", str(new.monitor_pid_file), "--pidfile", str(new.pid_file)]
        words += ["--sdnotify", "ignore", "--log-driver", "passthrough", "--cgroups", "no-conmon"]
        if new.control_group:
            words += ["--cgroup-parent", new.control_group]
        has_secrets = new.secrets.variables is not None
        runtime = self._secret_runtime if has_secrets else self._holding_runtime
        return self._command(str(runtime), *words)

    def entrypoint(self, words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return ("--entrypoint", json.dumps(list(words))), ()

    def gpus(self, devices: Sequence[int]) -> tuple[str, ...]:
        return tuple(word for n in devices for word in ("--device", f"nvidia.com/gpu={n}"))

    def read_only_root(self) -> tuple[str, ...]:
        return ("--read-only",)

    def calls(self, new: NewContainer, create: tuple[str, ...]) -> ContainerCalls:
        return ContainerCalls(
            self.name,
            new.process_tag,
            init=create,
            start=("/bin/sh", "-c", _START, self.oci_runtime, str(new.id_file)),
            monitor_pid_file=str(new.monitor_pid_file),
            pid_file=str(new.pid_file),
        )

    def remove(self, names: Sequence[str]) -> tuple[str, ...]:
        return self.command("rm", "--force", "--ignore", "--time", "0", "--volumes", *names)

    def is_name_taken(self, message: str) -> bool:
        return False  # the other container is replaced

    def is_image_missing(self, message: str) -> bool:
        return "image not known" in message

    async def has_image(self, image: str) -> bool:
        try:
            await call_runtime(self.command("image", "exists", "--", image))
        except RuntimeCallError:
            return False
        return True

    async def pull(self, image: str, registry_auth: str, on_layer: Callable[[str], None]) -> None:
        def on_line(line: str) -> None:
            if line.startswith("Copying blob "):
                on_layer(line.split(" ")[2])

        source = f"docker://{image}"  # a registry, whatever the name of the image says
        try:
            if not registry_auth:
                await call_runtime(self.command("pull", "--", source), on_line)
                return
            # In memory, without a name that others could open.
            logins = os.memfd_create("registry-auth")
            try:
                os.write(logins, registry_auth.encode())
                option = f"--authfile=/proc/self/fd/{logins}"
                await call_runtime(self.command("pull", option, "--", source), on_line, (logins,))
            finally:
                os.close(logins)
        except RuntimeCallError as error:
            text = str(error).removeprefix(f"initializing source {source}: ")
            raise RuntimeCallError(text) from None
