"""The options of `phalanx worker` on containers."""

from pathlib import Path
from typing import NamedTuple

from phalanx.agent.containers.detection import find_runtime
from phalanx.agent.containers.runtime import (
    ContainerMount,
    ContainerPolicy,
    NoRuntime,
    has_apparmor,
)
from phalanx.agent.containers.runtime_choice import RuntimeChoice
from phalanx.cli.settings import refuse

_EXAMPLE = "/data, /data:/mnt/data or /data:/mnt/data:ro"


class ContainerChoice(NamedTuple):
    runtime: RuntimeChoice
    mounts: list[str]
    allow_privileged: bool
    has_gpus: bool  #: the worker has GPUs that are not simulated


def container_policy(choice: ContainerChoice, state_dir: Path) -> ContainerPolicy | str:
    """The settings on containers, or why this worker runs none."""
    if choice.runtime is RuntimeChoice.NONE:
        return "--container-runtime none"
    mounts = tuple(map(_mount, choice.mounts))
    try:
        runtime = find_runtime(choice.runtime, state_dir)
    except NoRuntime as error:
        if choice.runtime is not RuntimeChoice.AUTO:
            refuse(f"--container-runtime {choice.runtime}: {error}")
        if mounts or choice.allow_privileged:
            flag = "--container-mount" if mounts else "--allow-privileged"
            refuse(f"{flag}: this worker cannot run containers: {error}")
        return str(error)
    return ContainerPolicy(
        runtime,
        mounts,
        choice.allow_privileged,
        has_apparmor=has_apparmor(),
        has_gpus=choice.has_gpus,
    )


def _mount(written: str) -> ContainerMount:
    source, _, rest = written.partition(":")
    target, _, mode = rest.partition(":")
    if target == "ro" and not mode:
        target, mode = "", "ro"
    mount = ContainerMount(Path(source), Path(target or source), read_only=mode == "ro")
    is_absolute = mount.source.is_absolute() and mount.target.is_absolute()
    if not is_absolute or mode not in ("", "ro", "rw") or "," in written:
        refuse(f"--container-mount: {written} is not a mount; write it like {_EXAMPLE}")
    if not mount.source.exists():
        refuse(f"--container-mount: {mount.source} does not exist; create it first")
    return mount
