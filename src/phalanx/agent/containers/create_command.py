"""The command line that creates the container of an attempt."""

import resource
from collections.abc import Iterator
from pathlib import Path

from phalanx.agent.containers.new_container import ContainerUser, NewContainer
from phalanx.agent.containers.runtime import ContainerPolicy
from phalanx.agent.containers.secret_runtime import MOUNT
from phalanx.agent.messages import TaskUser
from phalanx.core.spec.security import UNCONFINED
from phalanx.wire.sync import TaskSpec

#: Where a container has the folder of its attempt.
FOLDER = Path("/phalanx")
#: Where a container has its files of secrets.
SECRETS = Path("/phalanx-secrets")
#: The user of Linux that owns no files.
_OVERFLOW_UID = 65534
_MOST_OPEN_FILES = 1024**2
_SHARED_MEMORY_BYTES = 1024**3
_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


class SecurityRefused(Exception):  # noqa: N818
    """The task asks for something that this worker does not allow; the message names it."""


def user_in_container(
    spec: TaskSpec, own: TaskUser | None, policy: ContainerPolicy
) -> ContainerUser | None:
    """The user of a task; None for that of its image. Raises SecurityRefused.

    `own` is the user of the task's namespace, on a worker where namespaces have users.
    """
    asked = spec.security.run_as_user if spec.security is not None else None
    if asked is None:
        return None if own is None else ContainerUser(own.uid, own.gid, own.groups)
    is_free = own is None or policy.allow_privileged or asked in (_OVERFLOW_UID, own.uid)
    if not is_free:
        raise SecurityRefused(
            f"security.run_as_user: on this worker tasks run as the user of their namespace; leave"
            f" it out, write {_OVERFLOW_UID}, or start the worker with --allow-privileged"
        )
    return ContainerUser(asked, asked)


def check_security(spec: TaskSpec, policy: ContainerPolicy) -> None:
    """Raises SecurityRefused if the task asks for more than this worker allows."""
    security = spec.security
    if security is None:
        return
    if security.apparmor not in {None, UNCONFINED} and not policy.has_apparmor:
        # Docker would ignore the profile.
        raise SecurityRefused("security.apparmor: AppArmor is not enabled on this worker")
    if policy.allow_privileged:
        return
    for field, is_asked in (
        ("privileged", security.privileged),
        ("capabilities.add", bool(security.add_capabilities)),
        ("apparmor: unconfined", policy.has_apparmor and security.apparmor == UNCONFINED),
    ):
        if is_asked:
            raise SecurityRefused(
                f"security.{field}: this worker does not allow it; start the worker with"
                " --allow-privileged"
            )


def create_command(spec: TaskSpec, new: NewContainer, policy: ContainerPolicy) -> tuple[str, ...]:
    """The command line of the container runtime."""
    if spec.image is None:
        raise AssertionError("bug: a container needs an image")
    program: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    if spec.command:
        command = spec.command
        words = ("/bin/sh", "-c", command) if isinstance(command, str) else command
        program, arguments = policy.runtime.entrypoint(words)
    return (
        *policy.runtime.create(new),
        *_identity(new),
        *_isolation(spec, new),
        *_security(spec, new, policy),
        *_files(spec, new, policy),
        *_devices(spec, policy),
        *_variables(spec, new, policy),
        *program,
        "--",
        spec.image,
        *arguments,
        *spec.args,
    )


def _identity(new: NewContainer) -> Iterator[str]:
    task, attempt = new.key
    yield from ("--pull", "never")
    labels = {"worker": new.worker, "task": task, "attempt": attempt}
    for name, value in labels.items():
        yield from ("--label", f"phalanx.{name}={value}")


def _isolation(spec: TaskSpec, new: NewContainer) -> Iterator[str]:
    """Control groups are ours, and so are the limits; the network is that of the worker."""
    yield from ("--network", "host", "--init", "--no-healthcheck", "--pids-limit", "-1")
    # By default podman asks for limits that a worker with lower ones cannot give. It limits itself
    # to so many open files and processes before it creates a container.
    most_processes = int(Path("/proc/sys/kernel/pid_max").read_text("ascii"))
    for name, kind, most in (
        ("nofile", resource.RLIMIT_NOFILE, _MOST_OPEN_FILES),
        ("nproc", resource.RLIMIT_NPROC, most_processes),
    ):
        soft, hard = (min(n, most) if n >= 0 else most for n in resource.getrlimit(kind))
        yield from ("--ulimit", f"{name}={soft}:{hard}")
    yield from ("--ulimit", f"rss={new.process_tag}:{2**63 - 1}")
    yield from ("--shm-size", str(spec.memory or _SHARED_MEMORY_BYTES))


def _security(spec: TaskSpec, new: NewContainer, policy: ContainerPolicy) -> Iterator[str]:
    security = spec.security
    if new.user is not None:
        yield from ("--user", f"{new.user.uid}:{new.user.gid}")
        for group in new.user.groups:
            yield from ("--group-add", str(group))
        if security is None or not security.privileged:
            yield from ("--security-opt", "no-new-privileges")
    if security is None:
        return
    if security.privileged:
        yield "--privileged"
    if security.read_only_root:
        yield from policy.runtime.read_only_root()
    if security.apparmor is not None:
        yield from ("--security-opt", f"apparmor={security.apparmor}")
    for name in security.add_capabilities:
        yield from ("--cap-add", name)
    for name in security.drop_capabilities:
        yield from ("--cap-drop", name)


def _files(spec: TaskSpec, new: NewContainer, policy: ContainerPolicy) -> Iterator[str]:
    if spec.workdir is not None:
        yield from ("--workdir", spec.workdir)
    yield from _mount(new.attempt_folder, FOLDER)
    if new.secrets.files is not None:
        yield from _mount(new.secrets.files, SECRETS, read_only=True)
    if new.secrets.variables is not None:
        yield from _mount(new.secrets.variables, Path(MOUNT))
    for mount in policy.mounts:
        yield from _mount(mount.source, mount.target, read_only=mount.read_only)


def _mount(source: Path, target: Path, *, read_only: bool = False) -> tuple[str, str]:
    fields = ["type=bind", f"source={source}", f"target={target}"]
    return "--mount", ",".join([*fields, "ro=true"] if read_only else fields)


def _devices(spec: TaskSpec, policy: ContainerPolicy) -> Iterator[str]:
    if policy.has_gpus:
        yield from policy.runtime.gpus(spec.devices)


def _variables(spec: TaskSpec, new: NewContainer, policy: ContainerPolicy) -> Iterator[str]:
    env = new.env
    if policy.has_gpus and spec.devices:
        # Inside the container the devices that it was given are numbered from 0.
        env = env | {_VISIBLE_DEVICES: ",".join(map(str, range(len(spec.devices))))}
    for name, value in env.items():
        yield from ("--env", f"{name}={value}")
