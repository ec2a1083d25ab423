"""The container runtime of a worker: what podman and Docker do differently, and the operator's
settings on containers.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from phalanx.agent.containers.new_container import NewContainer
from phalanx.agent.messages import ContainerCalls

_APPARMOR = Path("/sys/module/apparmor/parameters/enabled")


class NoRuntime(Exception):  # noqa: N818
    """This machine cannot run containers; the message says what is missing."""


class ContainerRuntime(Protocol):
    """Every method that returns words returns a whole command line, or options of `create`."""

    @property
    def name(self) -> str: ...

    @property
    def no_secret_variables(self) -> str:
        """Why containers cannot have variables with secrets; empty if they can."""

    @property
    def keeps_variables_until_start(self) -> bool:
        """Whether the variables with secrets are read only when the program is started."""

    @property
    def is_created_by_spawner(self) -> bool:
        """Whether the spawner creates a container together with its processes."""

    @property
    def is_installed_early(self) -> bool:
        """Whether others look for its programs before the first container."""

    def install(self) -> None:
        """Write the programs that it needs to the state directory. Raises OSError."""

    def command(self, *words: str) -> tuple[str, ...]: ...

    def create(self, new: NewContainer) -> tuple[str, ...]:
        """The first words of the command that creates a container; more options follow."""

    def entrypoint(self, words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The options, and the first arguments, that replace the program of the image."""

    def gpus(self, devices: Sequence[int]) -> tuple[str, ...]: ...

    def read_only_root(self) -> tuple[str, ...]: ...

    def calls(self, new: NewContainer, create: tuple[str, ...]) -> ContainerCalls:
        """How the spawner runs a container with that command to create it."""

    def remove(self, names: Sequence[str]) -> tuple[str, ...]:
        """The command that kills and removes containers, as far as they exist."""

    def is_name_taken(self, message: str) -> bool:
        """Whether a container could not be created because another one has its name."""

    def is_image_missing(self, message: str) -> bool:
        """Whether a container could not be created because its image is not in the storage."""

    async def has_image(self, image: str) -> bool: ...

    async def pull(self, image: str, registry_auth: str, on_layer: Callable[[str], None]) -> None:
        """Pull an image with these logins, or with those of the worker if there are none.

        Layers that are in the storage are not sent again, but the registry is asked for the image.
        Raises RuntimeCallError.
        """


def runtime_environment() -> dict[str, str]:
    """The variables for podman or docker, without those of the worker and its service manager."""
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
