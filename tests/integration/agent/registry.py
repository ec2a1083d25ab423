"""A registry on the loopback address, and private storages of podman with an image of busybox."""

import asyncio
import io
import os
import shutil
import subprocess
import tarfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.ports import free_port
from tests.requirements import require_programs, require_root

#: The programs of the image.
_APPLETS = (
    "sh cat cp echo env false grep head id ls mkdir mkfifo rm rmdir sleep sync tail test timeout"
    " touch true"
)
#: The login of a registry that asks for one, and the line of its password file.
LOGIN = "user:password"
_PASSWORD_LINE = "user:$2b$04$gHBRg8KboDfEkxjGETlLB.GTKjNmjAV0j5FPAhGvAt3DsOy9VaXmO"  # noqa: S105
#: Folders, each after the one that it is in.
_WORKDIRS = (
    "opt",
    "opt/tf-benchmarks",
    "opt/tf-benchmarks/scripts",
    "opt/tf-benchmarks/scripts/tf_cnn_benchmarks",
)
NEEDED = ("podman", "runc", "conmon", "catatonit", "busybox", "docker-registry", "gpg")


def require_podman() -> None:
    require_root("containers need root")
    require_programs(*NEEDED)


class Storage:
    """The images and containers of one worker.

    It reaches the registry at `host` through the port.
    """

    def __init__(self, folder: Path, host: str, port: int) -> None:
        folder.mkdir()
        self._folder = folder
        self._host = host
        conf, registries = folder / "storage.conf", folder / "registries.conf"
        conf.write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/graph"\n'
            f'runroot = "{folder}/run"\n'
        )
        registries.write_text(
            f'[[registry]]\nprefix = "{host}"\nlocation = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        #: For podman, and for a worker.
        self.variables = {
            "CONTAINERS_STORAGE_CONF": str(conf),
            "CONTAINERS_REGISTRIES_CONF": str(registries),
        }

    def podman(self, *words: str, data: bytes | None = None) -> str:
        command = ("podman", "--runtime", "runc", "--cgroup-manager=cgroupfs", *words)
        done = subprocess.run(  # noqa: S603
            command, env=os.environ | self.variables, input=data, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def publish(
        self, name: str, *options: str, login: str = "", signer: str = "", **programs: str
    ) -> str:
        """Make an image of busybox with a name like `train:1`, and push it to the registry: its
        digest there. `signer` is the owner of a GPG key.

        It has the programs, as scripts for the shell, and a working directory of the examples.
        """
        image, file = f"{self._host}/{name}", self._folder / "digest"
        self.podman("import", *options, "-", image, data=busybox(programs))
        own: tuple[str, ...] = ("--creds", login) if login else ()
        own += ("--sign-by", signer) if signer else ()
        self.podman("push", "--quiet", "--tls-verify=false", "--digestfile", str(file), *own, image)
        return file.read_text()

    def containers(self, job: str) -> list[str]:
        """The containers of the first task of a job."""
        label = f"label=phalanx.task={job}.0"
        return self.podman("ps", "--all", "--quiet", "--filter", label).split()

    def config_files(self) -> str:
        """What podman has written about its containers, on disk."""
        files = (self._folder / "graph").glob("overlay-containers/**/*.json")
        texts = []
        for file in files:
            with suppress(FileNotFoundError):  # of a container that is being removed
                texts.append(file.read_text())
        return "".join(texts)

    def remove(self) -> None:
        """Remove everything, mounts included."""
        self.podman("rm", "--all", "--force", "--time", "0")
        unmount = ["umount", f"{self._folder}/graph/overlay"]
        subprocess.run(unmount, capture_output=True, check=False)  # noqa: S603
        shutil.rmtree(self._folder, ignore_errors=True)


class Registry:
    """`docker-registry serve`, and a gate in front of it that a test can close."""

    def __init__(self, folder: Path, *, has_login: bool = False) -> None:
        self._folder = folder
        self._has_login = has_login
        self.port = 0
        self.gated_port = 0
        self.gate = asyncio.Event()  #: cleared: no answer passes the gate
        self.gate.set()
        self._process: Process | None = None
        self._server: asyncio.Server | None = None

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.port = free_port()
        config = self._folder / "registry.yml"
        config.write_text(
            f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {self._folder}/registry}}}}\n"
            f"http: {{addr: 127.0.0.1:{self.port}}}\nlog: {{level: error}}\n{self._auth()}"
        )
        self._process = await asyncio.create_subprocess_exec(
            "docker-registry", "serve", str(config), stdout=DEVNULL, stderr=DEVNULL
        )
        await eventually(self._answers, PATIENCE_S)
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.gated_port = self._server.sockets[0].getsockname()[1]

    def _auth(self) -> str:
        if not self._has_login:
            return ""
        passwords = self._folder / "passwords"
        passwords.write_text(f"{_PASSWORD_LINE}\n")
        return f"auth: {{htpasswd: {{realm: images, path: {passwords}}}}}\n"

    async def _answers(self) -> bool:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.close()
            return True
        return False

    async def _relay(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        registry, to_registry = await asyncio.open_connection("127.0.0.1", self.port)
        await asyncio.gather(
            self._copy(client, to_registry, is_gated=False),
            self._copy(registry, to_client, is_gated=True),
        )

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_gated: bool
    ) -> None:
        with suppress(OSError):
            while data := await source.read(64 * 1024):
                if is_gated:
                    await self.gate.wait()
                target.write(data)
                await target.drain()
        target.close()

    async def close(self) -> None:
        self.gate.set()
        if self._server is not None:
            self._server.close()
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None


def busybox(programs: Mapping[str, str]) -> bytes:
    """A root file system as an archive: busybox, links to it, and other programs."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, text in programs.items():
            file = tarfile.TarInfo(f"bin/{name}")
            file.size, file.mode = len(text), 0o755
            tar.addfile(file, io.BytesIO(text.encode()))
        for name in ("bin", "tmp", "etc", *_WORKDIRS):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)
        tar.add(shutil.which("busybox") or "", "bin/busybox")
        for applet in _APPLETS.split():
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return archive.getvalue()
