"""Manifests on the command line: converted without a server, submitted with one."""

import subprocess
from pathlib import Path

import pytest

from tests.acceptance.fleet import Fleet
from tests.acceptance.terminal import PATIENCE_S, SCRIPT, Following, Terminal
from tests.manifests import pod

PREFIX = "pod-group.scheduling.sigs.k8s.io"
NOWHERE = Terminal("http://127.0.0.1:9")


def gang(name: str) -> str:
    labels = f"{{{PREFIX}/name: {name}, {PREFIX}/min-available: 2}}"
    return pod(f"{name}-0", labels=labels) + pod(f"{name}-1", labels=labels)


def test_a_file_is_converted_without_a_server() -> None:
    said = NOWHERE.type("convert", "-f", "-", stdin=gang("web"))
    assert (said.status, said.err) == (0, "")
    assert said.out == (
        "name: web\nroles:\n  web:\n    replicas: 2\n    command:\n    - train\nrestart: task\n"
    )


def test_a_converted_file_is_the_same_job(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "native.yaml"
    file.write_text(NOWHERE.type("convert", "-f", "-", stdin=gang("twin")).out)
    first = terminal.type("submit", "-f", str(file), "--json").json
    assert terminal.type("cancel", first["id"]).status == 0
    second = terminal.type("submit", "-f", "-", "--json", stdin=gang("twin")).json
    specs = [terminal.type("job", job["id"], "--json").json["spec"] for job in (first, second)]
    assert specs[0] == specs[1]


def test_a_priority_class_is_kept_for_the_server() -> None:
    text = pod("a", spec="priorityClassName: urgent")
    assert "priority_class: urgent\n" in NOWHERE.type("convert", "-f", "-", stdin=text).out


@pytest.mark.parametrize("command", ["convert", "submit"])
def test_an_unsupported_field_is_refused_or_skipped_with_a_warning(
    command: str, terminal: Terminal
) -> None:
    text = pod(f"odd-{command}", spec="volumes: [{}]")
    said = terminal.type(command, "-f", "-", stdin=text)
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith("phalanx: standard input, document 1: spec.volumes is not supported")
    said = terminal.type(command, "-f", "-", "--ignore-unsupported", stdin=text)
    assert said.status == 0
    assert "warning: document 1: spec.volumes is not supported; it was ignored" in said.err


def test_quiet_converts_without_a_warning(terminal: Terminal) -> None:
    words = ("convert", "-f", "-", "--ignore-unsupported", "--quiet")
    said = terminal.type(*words, stdin=pod("odd", spec="volumes: [{}]"))
    assert (said.status, said.err) == (0, "")
    assert "name: odd" in said.out


def test_ignore_image_leaves_the_image_out(terminal: Terminal) -> None:
    text = pod("imaged").replace("command:", "image: train:7b, command:")
    said = terminal.type("submit", "-f", "-", "--ignore-image", "--json", stdin=text)
    spec = terminal.type("job", said.json["id"], "--json").json["spec"]
    assert spec["roles"] == {"imaged": {"command": ["train"]}}


def test_ignore_image_needs_a_file(terminal: Terminal) -> None:
    said = terminal.type("submit", "--ignore-image", "--", "train")
    assert (said.status, said.out) == (2, "")
    assert "need a file" in said.err


def test_a_file_can_set_queues_and_submit_jobs(terminal: Terminal) -> None:
    text = "{kind: Queue, name: vision, weight: 3}\n---\n{queue: vision, roles: {w: {command: t}}}"
    assert terminal.type("submit", "-f", "-", stdin=text).status == 0
    assert "vision" in terminal.type("queues").out


def test_a_worker_without_a_container_runtime_never_runs_the_command_of_an_image(
    tmp_path: Path,
) -> None:
    with Fleet(tmp_path, "--image-pinning=off") as fleet:
        fleet.work("w", "--label=runtime=containers", "--container-runtime=none")
        [job] = fleet.submit(pod("imaged").replace("command:", "image: train:7b, command:"))
        with Following(fleet.terminal.start("events", "-f", job)) as events:
            assert events.line_with("this worker has no container runtime", PATIENCE_S)


def test_output_that_cannot_be_written_ends_with_a_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        said = subprocess.run(  # noqa: S603
            [SCRIPT, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (said.returncode, said.stderr) == (
        1,
        "phalanx: cannot write the output: no space left on the device\n",
    )
