"""The programs that podman and Docker run in place of their OCI runtime: scripts for the shell."""

from pathlib import Path

from phalanx.agent.containers.secret_runtime import command_of

_SCRIPT = """#!/bin/sh
# Runs {oci_runtime} for Phalanx.
for word; do
    case "$word" in
{cases}
    esac
done
exec '{oci_runtime}' "$@"
"""
_CREATE = '    create) exec {program} "$@" ;;'
_START = "    start) exit 0 ;;"


def write_wrapper(
    path: Path, oci_runtime: str, *, adds_secrets: bool = False, holds_start: bool = False
) -> None:
    """Write a script that runs the OCI runtime. Raises OSError.

    With `adds_secrets` it creates containers with their variables with secrets. With `holds_start`
    the program of a container waits until it is started without the script.
    """
    cases = [_CREATE.format(program=command_of(oci_runtime))] if adds_secrets else []
    cases += [_START] if holds_start else []
    text = _SCRIPT.format(oci_runtime=oci_runtime, cases="\n".join(cases))
    if path.exists() and path.read_text("utf-8") == text:
        return  # a shell may be reading it
    path.write_text(text, encoding="utf-8")
    path.chmod(0o700)
