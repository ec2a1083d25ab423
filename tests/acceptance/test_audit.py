"""`phalanx audit`: who changed what."""

from pathlib import Path

import pytest

from tests.acceptance.pages import commands
from tests.acceptance.terminal import Server, Terminal


def test_changes_are_listed_newest_first_in_80_columns(terminal: Terminal) -> None:
    job = terminal.type("submit", "--name", "audited", "--gpu", "64", "--", "true").out.strip()
    assert terminal.type("hold", job).status == 0
    assert terminal.type("cancel", job).status == 0
    said = terminal.type("audit", "--target", job, COLUMNS="80")
    head, *lines = said.out.splitlines()
    assert head.split() == ["TIME", "(UTC)", "TOKEN", "FROM", "ACTION", "TARGET", "OUTCOME"]
    assert [line.split()[4] for line in lines] == ["cancel", "hold", "submit"]
    assert all(len(line) <= 80 for line in said.out.splitlines())
    assert all("127.0.0.1" in line and line.endswith("done") for line in lines), said.out
    [newest] = terminal.type("audit", "--since", "1h", "--limit", "1", "--json").json
    assert {"action", "principal", "remote", "request_id", "outcome"} <= newest.keys()
    assert terminal.type("audit", "--until", "1h", "--target", job, "--json").json == []


@pytest.mark.parametrize("words", commands("audit"), ids=" ".join)
def test_the_commands_of_the_page_work(terminal: Terminal, words: list[str]) -> None:
    said = terminal.type(*words)
    assert (said.status, said.err) == (0, "")


def test_a_token_that_is_changed_in_the_database_is_recorded(tmp_path: Path) -> None:
    place = f"sqlite:{tmp_path / 'phalanx.db'}"
    with Server(tmp_path) as server:
        terminal = Terminal(server.url)
        secret = terminal.type("token", "create", "ada", "--role", "admin", "--store", place)
        assert secret.status == 0, secret.err
        [record] = terminal.type("audit", "--target", "ada", "--json").json
    assert (record["action"], record["role"], record["kind"]) == ("create token", "store", "token")
    assert "@" in record["principal"]


def test_a_time_that_cannot_be_read_is_refused(terminal: Terminal) -> None:
    said = terminal.type("audit", "--since", "yesterday")
    assert said.status == 2
    assert "--since is yesterday; write a duration like 2h" in said.err
