"""Adds variables with secrets to a container that an OCI runtime is about to create.

podman writes the configuration of a container to disk. So the secrets are not in it: they are in a
file on a tmpfs, and this program stands before the OCI runtime, merges both on the tmpfs, and has
the runtime create the container from there. It is run by `write_runtime`'s script and imports
nothing of Phalanx.
"""

import json
import os
import sys
from pathlib import Path

#: The annotation of a container with the folder of its secrets.
ANNOTATION = "phalanx.secrets"
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
    """Write the script that podman runs in place of the OCI runtime. Raises OSError."""
    program = Path(__file__).resolve()
    text = _SCRIPT.format(python=sys.executable, program=program, oci_runtime=oci_runtime)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o700)


def main(oci_runtime: str, words: list[str]) -> None:
    """Create a container: `words` are the arguments of the runtime."""
    at = words.index("--bundle") + 1
    config = json.loads((Path(words[at]) / "config.json").read_bytes())
    folder = Path(config["annotations"][ANNOTATION])
    secrets = json.loads((folder / VARIABLES).read_bytes())
    kept = [pair for pair in config["process"]["env"] if pair.partition("=")[0] not in secrets]
    config["process"]["env"] = [*kept, *(f"{name}={value}" for name, value in secrets.items())]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    words[at] = str(folder)
    os.execv(oci_runtime, [oci_runtime, *words])  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
