"""The commands and flags on the page about workers."""

import re
import shlex
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.agent.machines import Fleet, Machine
from tests.requirements import require_root

pytestmark = pytest.mark.asyncio(loop_scope="module")

_PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "run-a-worker.md"


def commands() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", _PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return "".join(blocks).splitlines()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.mark.parametrize("command", commands())
async def test_every_command_on_the_page_starts_a_worker(
    command: str, small: Fleet, tmp_path: Path, open_folder: Path
) -> None:
    rack = {"name": tmp_path.name[:60], "role": "join"}
    created = await small.client.post(f"{small.server.url}/tokens", json=rack)
    (tmp_path / "token").write_text(created.json()["secret"])
    here = command.replace("/etc/phalanx", str(tmp_path)).replace("/srv/phalanx", str(open_folder))
    here = re.sub(r"https://\w+\.example:8080", small.server.url, here)
    words = shlex.split(here)
    assert words[:2] == ["phalanx", "worker"]
    name = words[words.index("--id") + 1] if "--id" in words else "shown"
    if "--task-uids" in words:
        require_root("only root can run tasks as other users")
    machine = Machine(tmp_path, name, small.server.url)
    if "--state-dir" in words:
        machine.state = Path(words[words.index("--state-dir") + 1])
    small.machines.append(machine)
    # The flags of the page come last, so they take precedence.
    await machine.start(*words[2:])

    await small.ready()
    assert name in [each["id"] for each in await small.get("/workers")]
    machine.send(signal.SIGTERM, spawner=False)
    assert await machine.ended() == 0
    await machine.kill()  # with --keep, its spawner lives on
    await machine.cleaned_up()


async def test_every_flag_is_on_the_page() -> None:
    source = (_PAGE.parents[2] / "src" / "phalanx" / "cli" / "worker.py").read_text("utf-8")
    flags = re.findall(r'"(--[a-z-]+)"', source)
    variables = re.findall(r'envvar="(\w+)"', source)
    assert len(flags) > 8
    page = _PAGE.read_text("utf-8")
    assert [name for name in {*flags, *variables} if f"`{name}`" not in page] == []
