"""Adds variables with secrets to a container that an OCI runtime is about to create.

podman and Docker write the configuration of a container to disk. So the secrets are not in it: they
are in a file on a tmpfs, and this program stands before the OCI runtime, merges both on the tmpfs,
and has the runtime create the container from there. It is run by `write_runtime`'s script and
imports nothing of Phalanx.
"""

import json
import os
import sys
from pathlib import Path

#: The script, in the state directory of a worker.
SECRET_RUNTIME = Path("containers/runtime")
#: The configuration has a mount at this place, of the folder with the secrets. The container does
#: not get it.
MOUNT = "/phalanx-variables"
#: The file in that folder with the variables.
VARIABLES = "variables.json"
_SCRIPT = """#!/bin/sh
# Runs {oci_runtime}. Containers are created with their secrets.
for word; do
    if [ "$word" = create ]; then exec '{python}' -I '{program}' '{oci_runtime}' "$@"; fi
done
exec '{oci_runtime}' "$@"
"""


def write_runtime(path: Path, oci_runtime: str) -> None:
    """Write the script that is run in place of the OCI runtime. Raises OSError."""
    program = Path(__file__).resolve()
    text = _SCRIPT.format(python=sys.executable, program=program, oci_runtime=oci_runtime)
    if path.exists() and path.read_text("utf-8") == text:
        return  # a shell may be reading it
    path.write_text(text, encoding="utf-8")
    path.chmod(0o700)


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
