"""Errors: the sentence that a user reads, and the exit status that a script gets."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.terminal import PATIENCE_S, SCRIPT, Server, Terminal, environment, until
from tests.integration.client.misbehaving_server import MisbehavingServer, answer, refusal

NOWHERE = "http://127.0.0.1:9"


def test_without_a_server_the_error_says_what_to_do_and_the_status_is_5() -> None:
    said = Terminal(NOWHERE).type("jobs")
    assert (said.status, said.out) == (5, "")
    assert said.err == (
        f"phalanx: no server at {NOWHERE}; start one there, or pass another address with --server"
        " or PHALANX_SERVER\n"
    )


@pytest.mark.parametrize("url", ["localhost", "ftp://x"])
def test_an_invalid_address_is_refused(url: str) -> None:
    said = Terminal(url).type("jobs")
    assert said.status == 2
    assert said.err == f"phalanx: PHALANX_SERVER is '{url}'; write it like http://127.0.0.1:8080\n"


def test_an_address_may_be_written_without_its_scheme(server: Server) -> None:
    assert Terminal(server.url.removeprefix("http://")).type("workers").status == 0


def test_the_option_overrides_the_variable_and_the_variable_overrides_the_file(
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
    assert (
        said.err == f"phalanx: {file}: sever is not a setting;"
        " the settings are server, token, fingerprint, namespace\n"
    )


def test_a_command_waits_for_a_standby_to_take_over_and_says_so() -> None:
    standing_by = refusal(503, "no_leader")
    with MisbehavingServer(*[standing_by] * 6, answer(200, [])) as server:
        said = Terminal(server.url).type("workers")
    assert said.status == 0, said
    assert len(server.requests) == 7
    assert said.err.count("no server leads at the moment; waiting for one to take over") == 1


def test_without_a_required_token_the_error_says_how_to_pass_one(tmp_path: Path) -> None:
    with Server(tmp_path, "--loopback-open=false") as server:
        at = Terminal(server.url)
        said = at.type("jobs")
        assert said.status == 4
        assert "--token-file or PHALANX_TOKEN" in said.err
        store = f"--store=sqlite:{tmp_path / 'phalanx.db'}"
        token = at.type("token", "create", "ada", "--namespace=ml", store).out.strip()
        shown = at.type("jobs", "--token", token)
        assert (shown.status, shown.out) == (2, "")
        assert "did you mean --token-file" in shown.err
        file = tmp_path / "token"
        file.write_text(f"{token}\n")
        until(lambda: at.type("jobs", f"--token-file={file}").status != 4)  # within seconds
        assert at.type("jobs", PHALANX_TOKEN_FILE=str(file)).status == 0
        known = Terminal(server.url, PHALANX_TOKEN=token)
        assert known.type("submit", "--namespace", "ml", "--", "x").status == 0
        said = known.type("submit", "--namespace", "other", "--", "x")
        assert said.status == 4
        assert "other" in said.err
        assert known.type("cordon", "w-1").status == 4


def test_holding_an_ended_job_is_refused_with_status_4(terminal: Terminal) -> None:
    job = terminal.type("submit", "--gpu", "1", "--", "x").out.strip()
    terminal.type("cancel", job)
    said = terminal.type("hold", job)
    assert said.status == 4
    assert said.err == f"phalanx: job {job} is cancelled; a cancelled job cannot be changed\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("sumbit", "sumbit is not a command; did you mean submit?"),
        ("xyz", "xyz is not a command; see `phalanx --help`"),
        ("cron shw", "shw is not a command; did you mean show?"),
        ("jobs --lmit 3", "--lmit is not an option of `phalanx jobs`; did you mean --limit"),
        ("jobs -z", "-z is not an option of `phalanx jobs`; see `phalanx jobs --help`"),
        ("jobs --limit", "--limit needs a value; see `phalanx --help`"),
        ("jobs --json=3", "--json does not take a value; write --json alone"),
        ("jobs --limit x", "--limit is 'x'; write a whole number, at least 1"),
        ("jobs --phase odd", "--phase is 'odd'; write pending, starting, running, stopping, done,"),
        ("up --gpus 65", "--gpus is '65'; write a whole number from 0 to 64"),
        ("top -i nan", "--interval is 'nan'; write a number, at least 0.1"),
        ("why", "JOB is missing; see `phalanx why --help`"),
        ("apply", "--file is missing; see `phalanx apply --help`"),
        ("why a b", "`phalanx why` does not take the argument b; see `phalanx why --help`"),
        ("priority a high", "PRIORITY is 'high'; write a whole number"),
    ],
)
def test_wrong_usage_is_refused_in_our_words(words: str, sentence: str) -> None:
    said = Terminal(NOWHERE).type(*words.split())
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith(f"phalanx: {sentence}")
    assert said.err.count("\n") == 1


def test_a_server_that_is_not_phalanx_is_named(tmp_path: Path) -> None:
    with MisbehavingServer(answer(200, ["hello"])) as other:
        said = Terminal(other.url).type("jobs")
    assert said.status == 5
    assert f"{other.url} answered GET /jobs with something else than expected" in said.err


def test_the_installed_script_is_used() -> None:
    assert Path(SCRIPT).is_file()


INTERRUPTED = """
import os, signal, sys
from phalanx.cli import main

module = sys.argv.pop(1)

class CtrlC:
    def find_spec(self, name, path, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
main()
"""


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("typer", ["jobs"]),
        ("phalanx.cli.app", ["jobs"]),
        ("phalanx.cli.submit", ["submit", "--", "true"]),
        ("httpx", ["jobs"]),
        ("phalanx.cli.local_cluster", ["up", "--data", "{folder}"]),
    ],
)
def test_ctrl_c_during_an_import_ends_a_command_in_silence(
    module: str, words: list[str], tmp_path: Path
) -> None:
    words = [word.format(folder=tmp_path) for word in words]
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", INTERRUPTED, module, *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment(PHALANX_SERVER=NOWHERE),
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
