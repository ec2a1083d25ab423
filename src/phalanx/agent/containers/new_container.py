"""What a container is created from: its names, its folders, its user and its secrets."""

from pathlib import Path
from typing import NamedTuple

from phalanx.agent.messages import AttemptKey


class ContainerUser(NamedTuple):
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


class ContainerSecrets(NamedTuple):
    """Where a container gets its secrets from: folders on a tmpfs."""

    variables: Path | None = None  #: None if no variable has a secret
    files: Path | None = None  #: mounted in the container


class NewContainer(NamedTuple):
    key: AttemptKey
    name: str
    worker: str  #: identifies the worker among those that share a storage
    process_tag: int
    control_group: str  #: relative to the group of the worker; empty if there is none
    attempt_folder: Path
    monitor_pid_file: Path
    pid_file: Path
    id_file: Path  #: written when it is created
    env: dict[str, str]
    user: ContainerUser | None  #: None for the user of the image
    secrets: ContainerSecrets
