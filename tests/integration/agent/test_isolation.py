"""A worker without the privileges of root keeps its token, its socket and its files from tasks."""

import os
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.agent.machines import Fleet, Machine
from tests.integration.server.processes import phalanx, sqlite_at
from tests.integration.server.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Root may read the memory of every process; without its capabilities, root is a user like others.
UNPRIVILEGED = (
    ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all")
    if os.geteuid() == 0
    else ()
)
#: Connects to the spawner as its link would, and prints what it is sent.
CONNECT = """
import os, socket, sys
os.chdir(sys.argv[1])
spawner = socket.socket(socket.AF_UNIX)
spawner.settimeout(20)
spawner.connect("spawner.sock")
print("received", spawner.recv(100))
"""


class Site:
    """A fleet with one worker, which has a token and open files of whoever started it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fleet = Fleet(folder)
        self.machine: Machine
        self.token = ""

    async def start(self) -> None:
        store = f"--store={sqlite_at(self.folder)}"
        admin = await phalanx("token", "create", "me", "--role=admin", store)
        self.fleet.client.headers["Authorization"] = f"Bearer {admin[1].split()[-1]}"
        joining = await phalanx("token", "create", "rack", "--role=join", store)
        self.token = joining[1].split()[-1]
        await self.fleet.serve("--loopback-open=false")
        self.machine = Machine(self.folder, "w-0", self.fleet.server.url)
        self.fleet.machines.append(self.machine)
        (self.folder / "secret").write_text("of the operator")
        opened = f"exec 7<'{self.folder}/secret' 8>'{self.folder}/opened'; exec \"$@\""
        await self.machine.start(
            before=("sh", "-c", opened, "sh", *UNPRIVILEGED), PHALANX_TOKEN=self.token
        )
        await self.fleet.ready()

    async def output(self, command: str) -> str:
        """What a task prints."""
        seen = self.folder / "seen"
        await self.fleet.reach(
            await self.fleet.submit(command=f"({command}) >'{seen}' 2>&1; true"), "done"
        )
        return seen.read_text()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    await site.start()
    yield site
    await site.fleet.close()


async def test_a_task_cannot_read_the_token_of_its_worker(site: Site) -> None:
    pids = (site.machine.link, site.machine.spawner)
    reads = [f"cd /proc/{pid}; cat environ; cat fd/3; head -c 9 mem" for pid in pids]
    seen = await site.output(f"env; {'; '.join(reads)}")
    assert seen.count("Permission denied") == 6, seen
    assert "PHALANX_TASK=" in seen
    assert site.token not in seen
    environment = Path(f"/proc/{site.machine.spawner}/environ").read_bytes()
    assert site.token.encode() not in environment, "root can read that one"


async def test_a_task_cannot_command_the_spawner(site: Site) -> None:
    connect = f"{sys.executable} -W ignore -c '{CONNECT}' '{site.machine.state}'"
    assert await site.output(connect) == "received b''\n"
    assert not site.machine.logged("spawner died")
    assert await site.output("echo served") == "served\n"


async def test_a_task_inherits_no_open_file_of_whoever_started_its_worker(site: Site) -> None:
    seen = await site.output("ls -l /proc/$$/fd")
    assert str(site.folder / "secret") not in seen
    links = [line.partition(" -> ") for line in seen.splitlines() if " -> " in line]
    files = {name.split()[-1]: target for name, _, target in links}
    assert files.keys() == {"0", "1", "2"}, seen
    assert files["0"] == "/dev/null"


async def test_a_checkpoint_that_the_worker_may_not_read_is_said_in_an_event(site: Site) -> None:
    folder = 'cd "$(dirname "$PHALANX_CHECKPOINT_OUT")"'
    command = f"{folder}; echo 1 >checkpoint.out; mkdir -p a/b; chmod 0 checkpoint.out a"
    job = await site.fleet.submit(command=command)
    await site.fleet.reach(job, "done")
    [problem] = [
        event["message"]
        for event in await site.fleet.events(job)
        if event["kind"] == "TaskProblemReported"
    ]
    assert problem.startswith("checkpoint not saved: it cannot be read: Permission denied")

    async def is_clean() -> bool:
        folders = [site.machine.state / name for name in ("attempts", "trash")]
        return not any(any(folder.iterdir()) for folder in folders)

    await eventually(is_clean, PATIENCE_S, site.machine.log)


async def test_the_state_directory_is_closed_to_other_users(site: Site) -> None:
    state = site.machine.state
    assert state.stat().st_mode & 0o777 == 0o700
    for path in state.iterdir():
        with suppress(FileNotFoundError):  # a temporary file, which has got its name
            mode = path.lstat().st_mode
            assert stat.S_ISDIR(mode) or mode & 0o077 == 0, path
