"""Binaries of the control plane and of KWOK: built once, and kept outside the tree.

`python -m tests.kubernetes.binaries` builds what is missing.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

Say = Callable[[str], None]


class CannotBuildError(Exception):
    """A binary is missing and could not be built."""


class Binary(NamedTuple):
    module: Path  #: folder with go.mod, go.sum and, unless the package is another's, main.go
    package: str
    flags: tuple[str, ...]
    title: str
    minutes: int  #: of two idle cores, for a first build

    @property
    def path(self) -> Path:
        """Where the binary is kept. The name changes with everything it is built from."""
        digest = hashlib.sha256(repr((self.package, self.flags)).encode())
        for source in sorted(self.module.iterdir()):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
        return cache_folder() / f"{self.module.name}-{digest.hexdigest()[:16]}"


CONTROL_PLANE = Binary(
    HERE / "controlplane",
    ".",
    ("-ldflags=-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3",),
    "Kubernetes 1.36.3 and etcd 3.6.8",
    6,
)
KWOK = Binary(HERE / "kwok", "sigs.k8s.io/kwok/cmd/kwok", ("-ldflags=-s -w",), "KWOK 0.8.0", 2)
#: The oldest Go that compiles them.
GO_VERSION = (1, 26)


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "phalanx" / "kubernetes"


def built(binary: Binary, say: Say) -> Path:
    """The path of the binary, after a build if there is none. Concurrent callers build once."""
    if binary.path.exists():
        return binary.path
    with _locked():
        if not binary.path.exists():
            _build(binary, say)
    return binary.path


def _build(binary: Binary, say: Say) -> None:
    go = _go(say)
    say(
        f"building {binary.title} for the tests: once, about {binary.minutes} minutes on two idle"
        f" cores, kept in {cache_folder()}"
    )
    began = time.monotonic()
    unfinished = binary.path.with_suffix(".unfinished")
    command = ["nice", "-n", "10", str(go), "build", "-trimpath", "-buildvcs=false"]
    command += [*binary.flags, "-o", str(unfinished), binary.package]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    _run(command, f"could not build {binary.title}", cwd=binary.module, env=environment)
    unfinished.replace(binary.path)
    say(f"built {binary.title} in {time.monotonic() - began:.0f} s")


def _go(say: Say) -> Path:
    """A Go compiler: the one on the path if it is new enough, else one from a wheel."""
    installed = shutil.which("go")
    if installed and _version(installed) >= GO_VERSION:
        return Path(installed)
    folder = cache_folder() / "go"
    go = folder / "bin" / "go"
    if not go.exists() or _version(str(go)) < GO_VERSION:
        say(f"installing a Go compiler into {folder}")
        failure = "could not install a Go compiler"
        _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], failure)
        pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
        pip += ["--quiet", "--disable-pip-version-check", "--require-hashes"]
        _run([*pip, "-r", str(ROOT / "requirements" / "go.lock")], failure)
    return go


def _version(go: str) -> tuple[int, int]:
    asked = subprocess.run([go, "version"], capture_output=True, text=True, check=False)  # noqa: S603
    found = re.search(r"go(\d+)\.(\d+)", asked.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _run(
    command: list[str], failure: str, cwd: Path | None = None, env: dict[str, str] | None = None
) -> None:
    done = subprocess.run(  # noqa: S603
        command,
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        status = f"{Path(command[0]).name} ended with status {done.returncode}"
        raise CannotBuildError(f"{failure}: {status}\n{done.stdout[-2000:]}")


@contextmanager
def _locked() -> Iterator[None]:
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> None:
    try:
        for binary in (CONTROL_PLANE, KWOK):
            built(binary, lambda line: print(line, flush=True))  # noqa: T201
    except CannotBuildError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
