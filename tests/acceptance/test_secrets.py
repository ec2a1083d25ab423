"""Secrets reach the tasks that use them, and nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.secrets.encryption import add_key
from tests.acceptance.fleet import Fleet, files_with
from tests.acceptance.pages import blocks, commands
from tests.plain_http import http_client

BUCKET, TOKEN = "s3://hidden-bucket-7f3a", "tok-9c1e55aa-line"

JOB = """
name: reader
roles:
  worker:
    replicas: 2
    command:
    - sh
    - -c
    - echo "bucket $BUCKET url $URL"; cat $PHALANX_SECRETS/token; stat -f -c %T $PHALANX_SECRETS;
      echo $PHALANX_SECRETS; printf %s "$BUCKET" | tail -c 4
    env:
      BUCKET: ${resources.training-data.bucket}
      URL: https://${resources.training-data.user}:x@hub.example
      LITERAL: $${resources.training-data.bucket}
    secret_files:
      token: "token=${resources.training-data.token}\\n"
    per_node: 1
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    key = tmp_path / "keys" / "secret.key"
    add_key(key)
    files = tmp_path / "provided" / "default" / "training-data"
    files.mkdir(parents=True)
    (files / "user").write_text("ada\n")
    providers = f"built-in,files:{tmp_path / 'provided'}"
    state = tmp_path / "state"
    state.mkdir()
    with Fleet(state, f"--secret-key-file={key}", f"--secret-providers={providers}") as running:
        yield running


def test_a_secret_is_in_the_environment_of_its_tasks_and_nowhere_else(
    fleet: Fleet, tmp_path: Path
) -> None:
    said = fleet.terminal.type("secret", "set", "training-data", "bucket=-", stdin=f"{BUCKET}\n")
    assert said.out == "secret default/training-data has the keys bucket\n", said.err
    (tmp_path / "token").write_text(TOKEN)
    fleet.terminal.type("secret", "set", "training-data", f"token=@{tmp_path / 'token'}")
    (tmp_path / "token").unlink()
    for name in ("w-1", "w-2"):
        fleet.work(name, "--resources=cpu=1")
    [job] = fleet.submit(JOB)
    assert fleet.ends(job).phase == "done"
    logs = fleet.terminal.type("logs", job, "--task", "1").out
    folder = logs.splitlines()[-2]
    # The task had the values: their last characters alone are not masked.
    masked = "bucket [redacted] url https://ada:x@hub.example\ntoken=[redacted]"
    assert logs == f"{masked}\ntmpfs\n{folder}\n7f3a\n"
    assert not Path(folder).exists(), "the files of secrets outlived the task"
    with http_client(fleet.client.servers[0]) as client:
        for path in (f"/jobs/{job}", f"/jobs/{job}/events", "/secrets", "/audit", "/metrics"):
            answer = client.get(path).text
            assert BUCKET not in answer
            assert TOKEN not in answer
    shown = fleet.terminal.type("job", job, "--json").out
    assert "${resources.training-data.bucket}" in shown
    assert BUCKET not in shown + fleet.terminal.type("events", job, "--json").out
    assert files_with(tmp_path, BUCKET, TOKEN) == []


def test_a_gang_whose_secret_is_missing_fails_without_a_start_and_says_why(fleet: Fleet) -> None:
    fleet.work("w-1", "--resources=cpu=1")
    at, file = fleet.terminal, JOB.replace("replicas: 2", "replicas: 1")
    said = at.type("submit", "-f", "-", "--wait", stdin=file)
    assert said.status == 1
    assert "secret default/training-data has no key bucket; set it with" in said.out + said.err
    [job] = fleet.client.jobs(finished=True)
    assert all(task.started_at is None for task in fleet.client.tasks(job.id))
    at.type("secret", "set", "training-data", f"bucket={BUCKET}", f"token={TOKEN}")
    [again] = at.type("retry", job.id, "--json").json
    assert fleet.ends(again["id"]).phase == "done"


def test_a_file_is_set_as_it_is_and_standard_input_is_one_value(
    fleet: Fleet, tmp_path: Path
) -> None:
    (tmp_path / "key").write_bytes(b"-----KEY-----\r\nabc\n")
    fleet.work("w-1", "--resources=cpu=1")
    at = fleet.terminal
    said = at.type("secret", "set", "tls", f"key=@{tmp_path}/key", "pin=-", stdin="12345\n")
    assert said.status == 0, said.err
    job = """{name: tls, roles: {worker: {secret_files: {key: "${resources.tls.key}"},
    env: {PIN: "${resources.tls.pin}"},
    command: "od -An -tx1 $PHALANX_SECRETS/key; printf %s \\"$PIN\\" | od -An -tx1"}}}"""
    at.type("submit", "-f", "-", "--wait", stdin=job)
    key, pin = (bytes.fromhex(line) for line in at.type("logs", "tls").out.split("\n 31", 1))
    assert (key, b"1" + pin) == ((tmp_path / "key").read_bytes(), b"12345")
    said = at.type("secret", "set", "tls", "a=-", "b=-", stdin="x")
    assert (said.status, "standard input has one value" in said.err) == (2, True)


def test_secrets_are_listed_and_removed_by_key(fleet: Fleet) -> None:
    at = fleet.terminal
    at.type("secret", "set", "hub", "user=ada", "password=x1y2z3", "--namespace", "ml")
    said = at.type("secret", "set", "hub", "user name=ada")
    assert (said.status, 'the key is "user name"; use letters' in said.err) == (2, True)
    listed = at.type("secret", "list").out
    assert listed.splitlines()[1].split()[:4] == ["ml", "hub", "password,", "user"]
    assert "x1y2z3" not in listed + at.type("secret", "list", "--json").out
    said = at.type("secret", "rm", "hub", "nothing", "--namespace", "ml")
    assert (said.status, "secret hub in namespace ml has no key nothing" in said.err) == (3, True)
    assert at.type("secret", "rm", "hub", "user", "--namespace", "ml").status == 0
    assert at.type("secret", "list", "--json").json[0]["keys"] == ["password"]
    assert at.type("secret", "rm", "hub", "--namespace", "ml").out == "removed secret ml/hub\n"
    assert at.type("secret", "list", "--json").json == []


def test_a_server_without_a_key_refuses_secrets_and_says_what_to_do(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet:
        said = fleet.terminal.type("secret", "set", "hub", "user=ada")
        assert said.status == 4
        assert "phalanx secret new-key FILE" in said.err


def test_the_commands_of_the_page_work_as_it_says(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("access-key").write_text("AKIA-4711-EXAMPLE\n")
    Path("job.yaml").write_text(blocks("secrets", "yaml")[0])
    fleet.work("w-1", "--resources=cpu=1")
    for words in commands("secrets"):
        said = fleet.terminal.type(*words, stdin="wJalr-EXAMPLE-KEY\n")
        assert said.status == 0, (words, said.err)
        if words[0] == "logs":
            assert said.out == "[redacted]\n[redacted]\n"
