"""Docker, with a daemon on this machine. A monitor of ours stands in for conmon: see
`docker_monitor`.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from phalanx.agent.containers import docker_monitor
from phalanx.agent.containers.new_container import NewContainer
from phalanx.agent.containers.oci_wrapper import write_wrapper
from phalanx.agent.containers.runtime import NoRuntime, runtime_environment
from phalanx.agent.containers.runtime_call import RuntimeCallError, call_runtime
from phalanx.agent.messages import ContainerCalls
from phalanx.agent.spawner.cgroup_hierarchies import common_parent
from phalanx.registry.image_reference import ImageReference
from phalanx.registry.logins import RegistryLogin, read_logins
from phalanx.registry.registry_client import RegistryClient, RegistryError

if TYPE_CHECKING:
    import httpx

_SOCKET = "unix:///var/run/docker.sock"
_SETTINGS = "/etc/docker/daemon.json"
#: The name that the daemon knows the program by that gives containers their secrets.
_REGISTERED = "phalanx"
_ANSWER_S = 30.0
#: As podman mounts them in a container with a read-only root.
_WRITABLE = ("/run", "/tmp", "/var/tmp")  # noqa: S108


def find_docker(state_dir: Path) -> "Docker":
    """Asks the daemon what it can do. Raises NoRuntime."""
    program = shutil.which("docker")
    if program is None:
        raise NoRuntime("docker is not installed")
    host = os.environ.get("DOCKER_HOST") or _SOCKET
    if not host.startswith("unix:///"):
        raise NoRuntime(f"DOCKER_HOST is {host}, and the Docker daemon has to be on this machine")
    info = _ask_daemon((program, "--host", host, "info", "--format", "{{json .}}"), host)
    parent = common_parent(Path("/proc/self"))
    options = " ".join(info.get("SecurityOptions") or ())
    if "name=rootless" in options or "name=userns" in options:
        raise NoRuntime("the Docker daemon maps users (rootless or userns-remap)")
    if info.get("CgroupDriver") != "cgroupfs":
        raise NoRuntime(
            f"the Docker daemon uses the cgroup driver {info.get('CgroupDriver')}; set"
            f' "exec-opts": ["native.cgroupdriver=cgroupfs"] in {_SETTINGS}'
        )
    if parent is None:
        raise NoRuntime(
            "the worker has another control group in each hierarchy of version 1, and Docker"
            " limits a container in one; use podman, or control groups of version 2"
        )
    return _docker(program, host, str(parent), info, state_dir)


def _docker(
    program: str, host: str, parent: str, info: Mapping[str, Any], state_dir: Path
) -> "Docker":
    runtimes = info.get("Runtimes") or {}
    path = runtimes.get(info.get("DefaultRuntime"), {}).get("path") or "runc"
    wrapper = state_dir / "containers" / "runtime"
    no_secrets = "" if _REGISTERED in runtimes else _how_to_register(wrapper)
    return Docker(program, host, parent, shutil.which(path) or path, wrapper, no_secrets)


def _how_to_register(wrapper: Path) -> str:
    entry = f'"runtimes": {{"{_REGISTERED}": {{"path": "{wrapper}"}}}}'
    return (
        "Docker would write the variables with secrets to its disk; use secret_files, or set"
        f" {entry} in {_SETTINGS} on this worker and restart the daemon and the worker"
    )


def _ask_daemon(command: tuple[str, ...], host: str) -> dict[str, Any]:
    """Raises NoRuntime."""
    try:
        done = subprocess.run(  # noqa: S603
            command,
            env=runtime_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_S,
            check=False,
        )
        info: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        info = {}
    if not info.get("ServerVersion"):
        raise NoRuntime(f"the Docker daemon does not answer at {host}")
    return info


class Docker(msgspec.Struct, frozen=True):
    program: str
    host: str
    parent_group: str  #: the group that the worker's are below, in every hierarchy
    oci_runtime: str
    secret_runtime: Path  #: gives containers their secrets, if the daemon knows it
    no_secret_variables: str = ""
    name: str = "docker"
    keeps_variables_until_start: bool = True
    is_installed_early: bool = True
    is_created_by_spawner: bool = False

    def install(self) -> None:
        write_wrapper(self.secret_runtime, self.oci_runtime, adds_secrets=True)

    @property
    def _socket(self) -> str:
        return self.host.removeprefix("unix://")

    def command(self, *words: str) -> tuple[str, ...]:
        return (self.program, "--host", self.host, *words)

    def create(self, new: NewContainer) -> tuple[str, ...]:
        words = ["create", "--name", new.name, "--log-driver", "none", "--restart", "no"]
        if new.secrets.variables is not None:
            words += ["--runtime", _REGISTERED]
        if new.control_group:
            words += ["--cgroup-parent", str(Path(self.parent_group) / new.control_group)]
        return self.command(*words)

    def entrypoint(self, words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return ("--entrypoint", words[0]), tuple(words[1:])

    def gpus(self, devices: Sequence[int]) -> tuple[str, ...]:
        return ("--gpus", f'"device={",".join(map(str, devices))}"') if devices else ()

    def read_only_root(self) -> tuple[str, ...]:
        return ("--read-only", *(word for path in _WRITABLE for word in ("--tmpfs", path)))

    def calls(self, new: NewContainer, create: tuple[str, ...]) -> ContainerCalls:
        monitor = str(Path(docker_monitor.__file__).resolve())
        pid_file = str(new.monitor_pid_file)
        return ContainerCalls(
            self.name,
            new.process_tag,
            init=(sys.executable, "-I", "-S", monitor, self._socket, new.name, pid_file),
            start=self.command("start", new.name),
            monitor_pid_file=pid_file,
            remove=self.remove([new.name]),
        )

    def remove(self, names: Sequence[str]) -> tuple[str, ...]:
        return self.command("rm", "--force", "--volumes", *names)

    def is_name_taken(self, message: str) -> bool:
        return "is already in use by container" in message

    def is_image_missing(self, message: str) -> bool:
        return "No such image" in message

    async def has_image(self, image: str) -> bool:
        try:
            await call_runtime(self.command("image", "inspect", "--format", "1", "--", image))
        except RuntimeCallError:
            return False
        return True

    async def pull(self, image: str, registry_auth: str, on_layer: Callable[[str], None]) -> None:
        reference = ImageReference.parse(image)
        login = _login(reference.registry, registry_auth)
        if "@" in image and await self.has_image(image):
            # The daemon would not ask the registry for a digest that it has pulled from there.
            try:
                async with RegistryClient(reference, login) as registry:
                    await registry.manifest(reference.digest or "")
            except RegistryError as error:
                raise RuntimeCallError(str(error)) from None
            return
        headers = {} if login is None else {"X-Registry-Auth": _header(login, reference.registry)}
        async with self._progress(image, headers) as lines:
            async for line in lines:
                step = json.loads(line)
                if "error" in step:
                    raise RuntimeCallError(str(step["error"]))
                if step.get("id"):
                    on_layer(step["id"])

    @asynccontextmanager
    async def _progress(
        self, image: str, headers: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[str]]:
        """The lines that the daemon writes about a pull. Raises RuntimeCallError."""
        import httpx  # noqa: PLC0415, it would slow down every start of a worker

        transport = httpx.AsyncHTTPTransport(uds=self._socket)
        name, separator, version = image.rpartition("@" if "@" in image else ":")
        if not separator or "/" in version:
            name, version = image, "latest"
        params = {"fromImage": name, "tag": version}
        timeout = httpx.Timeout(_ANSWER_S, read=None)
        try:
            async with (
                httpx.AsyncClient(transport=transport, timeout=timeout) as client,
                client.stream(
                    "POST", "http://docker/images/create", params=params, headers=headers
                ) as answer,
            ):
                if answer.status_code != httpx.codes.OK:
                    await answer.aread()
                    raise RuntimeCallError(_message_in(answer))
                yield answer.aiter_lines()
        except (httpx.HTTPError, ValueError) as error:
            why = str(error) or type(error).__name__
            raise RuntimeCallError(f"the Docker daemon does not answer: {why}") from None


def _message_in(answer: "httpx.Response") -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return f"the Docker daemon answered with status {answer.status_code}"


def _login(registry: str, registry_auth: str) -> RegistryLogin | None:
    """The login of the job, or else that of `docker login` on the worker."""
    try:
        if not registry_auth:
            folder = os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker"
            registry_auth = (Path(folder) / "config.json").read_text("utf-8")
        logins = read_logins(registry_auth)
    except (OSError, ValueError, RuntimeError):
        return None
    return logins.get("index.docker.io" if registry == "docker.io" else registry)


def _header(login: RegistryLogin, registry: str) -> str:
    fields = {
        "username": login.username,
        "password": login.password,
        "serveraddress": registry,
    }
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()
