"""Finds the container runtime of this machine: podman, or else Docker."""

import os
import shutil
from pathlib import Path

from phalanx.agent.containers.docker import find_docker
from phalanx.agent.containers.podman import find_podman
from phalanx.agent.containers.runtime import ContainerRuntime, NoRuntime
from phalanx.agent.containers.runtime_choice import RuntimeChoice


def find_runtime(choice: RuntimeChoice, state_dir: Path) -> ContainerRuntime:
    """The runtime of this machine for a worker with that state directory. Raises NoRuntime."""
    if os.geteuid() != 0:
        raise NoRuntime("containers need a worker that runs as root")
    if choice is RuntimeChoice.DOCKER:
        return find_docker(state_dir)
    try:
        return find_podman(state_dir)
    except NoRuntime as error:
        if choice is RuntimeChoice.PODMAN:
            raise
        if shutil.which("docker") is None:
            raise NoRuntime(f"{error}, and docker is not installed") from None
        try:
            return find_docker(state_dir)
        except NoRuntime as other:
            raise NoRuntime(f"{error}; {other}") from None
