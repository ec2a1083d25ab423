"""Adds variables with secrets to a container that an OCI runtime is about to create.

podman and Docker write the configuration of a container to disk. So the secrets are not in it: they
are in a file on a tmpfs, and this program stands before the OCI runtime, merges both on the tmpfs,
and has the runtime create the container from there. It is run by a script of `oci_wrapper` and
imports nothing of Phalanx.
"""

import json
import os
import sys
from pathlib import Path

#: The configuration has a mount at this place, of the folder with the secrets. The container does
#: not get it.
MOUNT = "/phalanx-variables"
#: The file in that folder with the variables.
VARIABLES = "variables.json"


def command_of(oci_runtime: str) -> str:
    """The words for a shell that create a container with its secrets."""
    return f"'{sys.executable}' -I '{Path(__file__).resolve()}' '{oci_runtime}'"


def main(oci_runtime: str, words: list[str]) -> None:
    """Create a container: `words` are the arguments of the runtime."""
    at = words.index("--bundle") + 1
    config = json.loads((Path(words[at]) / "config.json").read_bytes())
    [folder] = (Path(each["source"]) for each in config["mounts"] if each["destination"] == MOUNT)
    config["mounts"] = [each for each in config["mounts"] if each["destination"] != MOUNT]
    secrets = json.loads((folder / VARIABLES).read_bytes())
    kept = [pair for pair in config["process"]["env"] if pair.partition("=")[0] not in secrets]
    config["process"]["env"] = [*kept, *(f"{name}={value}" for name, value in secrets.items())]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    words[at] = str(folder)
    os.execv(oci_runtime, [oci_runtime, *words])  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
