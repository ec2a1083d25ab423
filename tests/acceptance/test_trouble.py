"""What a user reads when it does not work, and the status that a script gets."""

from pathlib import Path

import pytest

from tests.acceptance.terminal import SCRIPT, Server, Terminal

NOWHERE = "http://127.0.0.1:9"


def test_no_server_is_said_with_the_cure_and_status_5() -> None:
    said = Terminal(NOWHERE).type("jobs")
    assert (said.status, said.out) == (5, "")
    assert said.err == (
        f"phalanx: no server at {NOWHERE}; start one there, or name another with --server or"
        " PHALANX_SERVER\n"
    )


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://x"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    said = Terminal(url).type("jobs")
    assert said.status == 2
    assert said.err == f"phalanx: PHALANX_SERVER is '{url}'; write it like http://127.0.0.1:8080\n"


def test_the_flag_goes_before_the_variable_and_that_before_the_file(
    terminal: Terminal, server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "phalanx" / "client.toml"
    file.parent.mkdir()
    file.write_text(f'server = ["{NOWHERE}", "{server.url}"]\n')
    at_home = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert Terminal("").type("workers", **at_home).status == 0
    assert Terminal(NOWHERE).type("workers", **at_home).status == 5
    assert Terminal(NOWHERE).type("workers", "--server", server.url, **at_home).status == 0
    file.write_text("sever = 1\n")
    said = Terminal("").type("workers", **at_home)
    assert said.status == 2
    assert said.err == f"phalanx: {file}: sever is not a setting; it has server and token\n"


def test_without_a_token_where_one_is_needed_the_cure_is_told(tmp_path: Path) -> None:
    with Server(tmp_path, "--loopback-open=false") as server:
        at = Terminal(server.url)
        said = at.type("jobs")
        assert said.status == 4
        assert "--token or PHALANX_TOKEN" in said.err
        store = f"--store=sqlite:{tmp_path / 'phalanx.db'}"
        token = at.type("token", "create", "ada", "--namespace=ml", store).out.strip()
        while at.type("jobs", "--token", token).status == 4:  # it notices within seconds
            pass
        known = Terminal(server.url, PHALANX_TOKEN=token)
        assert known.type("submit", "--namespace", "ml", "--", "x").status == 0
        said = known.type("submit", "--namespace", "other", "--", "x")
        assert said.status == 4
        assert "other" in said.err
        assert known.type("cordon", "w-1").status == 4


def test_a_job_that_has_ended_cannot_be_held_and_that_is_status_4(terminal: Terminal) -> None:
    job = terminal.type("submit", "--gpu", "1", "--", "x").out.strip()
    terminal.type("cancel", job)
    said = terminal.type("hold", job)
    assert said.status == 4
    assert said.err == f"phalanx: job {job} is cancelled; a cancelled job cannot be changed\n"


def test_an_unknown_command_is_refused_with_status_2(terminal: Terminal) -> None:
    assert terminal.type("sumbit").status == 2


def test_the_script_is_the_one_that_is_installed() -> None:
    assert Path(SCRIPT).is_file()
