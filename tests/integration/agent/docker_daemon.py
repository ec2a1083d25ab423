"""A Docker daemon of a test's own, with images of busybox."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from phalanx.agent.containers.oci_wrapper import write_wrapper
from tests.integration.agent.registry import busybox
from tests.integration.server.waiting import PATIENCE_S
from tests.requirements import require_programs, require_root

NEEDED = ("dockerd", "docker", "containerd", "runc", "docker-init", "busybox", "docker-registry")
#: Before the command of a worker: Docker needs a worker that has the same control group in every
#: hierarchy.
SAME_GROUP = (
    "sh",
    "-c",
    'for f in /sys/fs/cgroup/*/cgroup.procs; do echo $$ >$f; done 2>&-; exec "$@"',
    "worker",
)


def require_docker() -> None:
    require_root("containers need root")
    require_programs(*NEEDED)


class DockerDaemon:
    def __init__(self, *flags: str) -> None:
        # The paths of sockets are short.
        self._folder = Path(tempfile.mkdtemp(prefix="docker-"))
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None
        self._log = self._folder / "log"
        self._host = f"unix://{self._folder}/docker.sock"
        self._runtime = self._folder / "runtime"
        #: While it exists, the containers with secrets do not start; then `held` exists too.
        self.hold, self.held = self._folder / "hold", self._folder / "held"
        own = self._folder / "secret-runtime"
        write_wrapper(own, shutil.which("runc") or "", adds_secrets=True)
        self._runtime.write_text(
            f"#!/bin/sh\nwhile [ -e {self.hold} ]; do touch {self.held}; sleep 0.05; done\n"
            f'exec {own} "$@"\n'
        )
        self._runtime.chmod(0o700)
        #: For a worker.
        self.variables = {"DOCKER_HOST": self._host, "DOCKER_CONFIG": str(self._folder)}

    def start(self) -> None:
        """Start the daemon, and return when it answers."""
        folder = self._folder
        words = ["dockerd", f"--host={self._host}", f"--data-root={folder}/data"]
        words += [f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
        words += ["--storage-driver=overlay2", "--bridge=none", "--iptables=false"]
        words += ["--exec-opt=native.cgroupdriver=cgroupfs", *self._flags]
        words += [f"--add-runtime=phalanx={self._runtime}"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)  # noqa: S603
        deadline = time.monotonic() + PATIENCE_S
        while self._call("version").returncode != 0:
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            assert time.monotonic() < deadline, self._log.read_text()[-2000:]

    def stop(self) -> None:
        """Stop the daemon. With --live-restore its containers go on."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def _call(self, *words: str, data: bytes | None = None) -> "subprocess.CompletedProcess[bytes]":
        command = ["docker", "--host", self._host, *words]
        env = os.environ | self.variables
        return subprocess.run(command, env=env, input=data, capture_output=True, check=False)  # noqa: S603

    def docker(self, *words: str, data: bytes | None = None) -> str:
        done = self._call(*words, data=data)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def log_in(self, logins: str) -> None:
        """Replace the logins of `docker login`."""
        (self._folder / "config.json").write_text(logins)

    def publish(self, image: str) -> str:
        """Make an image of busybox, and push it to its registry: its digest there."""
        self.docker("import", "-", image, data=busybox({}))
        [digest] = re.findall(r"digest: (sha256:\w+)", self.docker("push", image))
        return str(digest)

    def commands(self, verb: str) -> list[str]:
        """The commands of docker with that verb that run now."""
        lines = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                lines.append(path.read_text().split("\0"))
        return [" ".join(words) for words in lines if self._host in words and verb in words]

    def containers(self, job: str) -> list[str]:
        """The containers of the first task of a job."""
        label = f"label=phalanx.task={job}.0"
        return self.docker("ps", "--all", "--quiet", "--filter", label).split()

    def config_files(self) -> str:
        """What Docker has written about its containers, on disk."""
        files = [
            *self._folder.glob("data/containers/**/*.json"),
            *self._folder.glob("exec/**/*.json"),
        ]
        texts = []
        for file in files:
            with suppress(FileNotFoundError):  # of a container that is being removed
                texts.append(file.read_text())
        return "".join(texts)

    def close(self) -> None:
        if self._process is not None:
            listed = self._call("ps", "--all", "--quiet").stdout.decode().split()
            if listed:
                self._call("rm", "--force", "--volumes", *listed)
            self.stop()
        self._end_shims()
        mounts = [line.split(" ")[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted(mounts, reverse=True):
            if Path(mount).is_relative_to(self._folder):
                subprocess.run(["umount", "--lazy", mount], check=False)  # noqa: S603, S607
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end_shims(self) -> None:
        """Kill what outlives the daemon with --live-restore."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = path.read_text()
                if words.startswith("/usr/bin/containerd") and f"{self._folder}/" in words:
                    os.kill(int(path.parent.name), signal.SIGKILL)
