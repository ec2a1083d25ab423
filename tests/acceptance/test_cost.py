"""What evictions cost, as it is typed: the page about it, line by line."""

import re
from pathlib import Path

from phalanx.client import Client
from tests.acceptance.pages import commands
from tests.acceptance.terminal import Server, Terminal, Worker


def test_an_eviction_is_found_in_every_list_that_the_page_shows(tmp_path: Path) -> None:
    with Server(tmp_path, "--price=gpu=1000000000") as server:
        terminal = Terminal(server.url)
        with Worker(server.url, "w-1", gpu=1) as worker:
            said = terminal.type("submit", "--name", "train", "--gpu", "1", "--", "x")
            worker.claim()
            with Client(server.url) as client:
                client.requeue(said.out.strip())
        shown = terminal.type("job", "train")
        assert re.search(r"lost +\$[\d,.]+ .*: 1 eviction, the last eviction by local", shown.out)
        by_queue, by_job, by_evictor, as_json = [terminal.type(*each) for each in commands("cost")]
    found = as_json.json
    money = f"${found['to_eviction']['cost']:,.2f}"
    assert re.search(rf"default +1 +[\d.]+ +{re.escape(money)} +0 ", by_queue.out)
    assert f"lost in all: {money}" in by_queue.out
    assert "default/train" in by_job.out
    assert re.search(r"local +default +1 ", by_evictor.out)


def test_nothing_lost_is_nothing_to_list(terminal: Terminal) -> None:
    said = terminal.type("cost")
    assert (said.status, said.out) == (0, "")
