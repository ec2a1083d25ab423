"""The secrets of containers, on a tmpfs: files, which are mounted, and variables, which are removed
as soon as the processes of the container exist.
"""

from pathlib import Path

import msgspec

from phalanx.agent.containers.new_container import ContainerSecrets, ContainerUser
from phalanx.agent.containers.secret_runtime import VARIABLES
from phalanx.agent.messages import AttemptKey, TaskUser
from phalanx.agent.secret_files import SecretFiles
from phalanx.wire.sync import TaskSecrets


class SecretFolders:
    def __init__(self, folder: Path) -> None:
        """`folder` identifies the containers of the worker."""
        self._files = SecretFiles(folder / "files")
        self._variables = SecretFiles(folder / "variables")

    def write(
        self,
        key: AttemptKey,
        secrets: TaskSecrets | None,
        user: ContainerUser | None,
    ) -> ContainerSecrets:
        """Write the secrets of an attempt. Raises NoSecretFiles, OSError."""
        written = ContainerSecrets()
        if secrets is not None and secrets.files:
            owner = None if user is None else TaskUser(user.uid, user.gid)
            files = self._files.write(key, secrets.files, owner)
            if user is None:
                _open_to_all(files)
            written = written._replace(files=files)
        if secrets is not None and secrets.env:
            data = msgspec.json.encode(secrets.env).decode()
            variables = self._variables.write(key, {VARIABLES: data}, None)
            written = written._replace(variables=variables)
        return written

    def processes_exist(self, key: AttemptKey) -> None:
        """The variables are in the environment of the container and needed no more."""
        self._variables.remove(key)

    def remove(self, key: AttemptKey) -> None:
        self._files.remove(key)
        self._variables.remove(key)

    def remove_except(self, attempts: set[AttemptKey]) -> None:
        self._files.remove_except(attempts)
        self._variables.remove_except(attempts)


def _open_to_all(folder: Path) -> None:
    """Let the user of the image read the files. On the worker no other user can reach them."""
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o755)
