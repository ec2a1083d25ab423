"""The example programs, with the commands of their pages, on real servers and workers."""

import functools
import os
import random
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.acceptance.fleet import Fleet
from tests.acceptance.pages import HOW_TO, blocks
from tests.acceptance.terminal import (
    PATIENCE_S,
    SCRIPT,
    Following,
    Terminal,
    environment,
    until,
)
from tests.ports import free_port
from tests.requirements import leave_out, require_programs

ROOT = Path(__file__).parents[2]
LONG_S = 3 * PATIENCE_S


def typed_in(text: str) -> list[str]:
    found = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return "".join(found).splitlines()


def commands(section: str, page: str = "examples") -> list[str]:
    """What a section of a page says to type."""
    text = (HOW_TO / f"{page}.md").read_text("utf-8")
    found = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{page}.md has no section {section}"
    return typed_in(found[1])


@functools.cache
def python_with(module: str) -> str | None:
    """A Python here that has this."""
    for program in (sys.executable, "/usr/bin/python3"):
        # Looked for and not imported, which takes seconds.
        asked = f"import sys, importlib.util as i; sys.exit(i.find_spec({module!r}) is None)"
        found = subprocess.run([program, "-c", asked], capture_output=True, check=False)  # noqa: S603
        if found.returncode == 0:
            return program
    return None


def needed(module: str, *packages: str) -> str:
    """The Python that has it, or a skip that says how to get it."""
    program = python_with(module)
    if program is None:
        leave_out(f"no Python here has {module}; apt-get install -y {' '.join(packages)}")
    return program


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def variables(folder: Path, python: str = sys.executable) -> dict[str, str]:
    """With this Python as python3, our package for it, and ports that no other cluster gives."""
    shims = folder / "bin"
    shims.mkdir()
    for name, program in {"python3": python, "phalanx": SCRIPT}.items():
        (shims / name).write_text(f'#!/bin/sh\nexec {shlex.quote(program)} "$@"\n')
        (shims / name).chmod(0o755)
    first = random.randrange(20_000, 29_000)  # noqa: S311
    return {
        "PATH": f"{shims}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "PHALANX_PORTS": f"{first}-{first + 100}",
        "BLOCK_S": "0.1",  # of the elastic gang, which is not to end before it is shrunk
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


@contextmanager
def cluster(
    folder: Path, python: str = sys.executable, first: str | None = None
) -> Iterator[Terminal]:
    """What the page begins with, on a port of its own."""
    first = first or commands_at_the_top()[0]
    port = free_port()
    at = Terminal(f"http://127.0.0.1:{port}", **variables(folder, python))
    process = at.start(*words_of(first), f"--port={port}", f"--data={folder / 'data'}")
    with Following(process) as running:
        assert running.line_with("Ctrl-C stops everything.", PATIENCE_S), running.seen
        wait_for_workers(at, int(words_of(first)[2]))
        yield at
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


def commands_at_the_top() -> list[str]:
    return typed_in((HOW_TO / "examples.md").read_text("utf-8").partition("\n## ")[0])


def words_of(command: str) -> list[str]:
    program, *words = shlex.split(command)
    assert program == "phalanx"
    return words


def wait_for_workers(at: Terminal, count: int) -> None:
    """Also for the server, which may not answer yet."""

    def are_there() -> bool:
        said = at.type("workers", "--json")
        return said.status == 0 and len(said.json) >= count

    until(are_there)


def typed(at: Terminal, section: str) -> str:
    """The output of the commands of a section, which all succeed."""
    printed = ""
    for command in commands(section):
        said = at.type(*words_of(command))
        assert said.status == 0, (command, said)
        printed += said.out
    return printed


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        with cluster(tmp_path_factory.mktemp("small")) as at:
            yield at


def test_the_ring_computes_the_correct_sum(small: Terminal) -> None:
    assert "finished 60 steps, sum 153120 (correct)" in typed(small, "A ring of sockets")


def test_a_parameter_server_is_stopped_when_the_workers_are_done(small: Terminal) -> None:
    printed = typed(small, "A parameter server")
    assert len(re.findall(r"rank [123] done,", printed)) == 3
    told = small.type("events", "parameter-server").out
    assert "stopping all tasks: job complete" in told
    # Its last words come after the end of the job.
    until(lambda: "stopped after 597 updates" in small.type("logs", "parameter-server").out)


def test_a_wrong_loss_suspects_the_worker_where_it_began_and_restarts_from_before_it(
    tmp_path: Path,
) -> None:
    first, submit, events = commands("Try it", "watch")
    with cluster(tmp_path, first=first) as at:
        assert at.type(*words_of(submit)).status == 0
        told = at.type(*words_of(events)).out
        printed = at.type("logs", "ghost-loss").out
        again, progress = typed_in((HOW_TO / "progress.md").read_text("utf-8"))
        assert again == submit
        shown = at.type(*words_of(progress)).out
    [worker] = re.findall(r"rank 2 on (\S+) reported loss 940.1 at step 120", told)[:1]
    blamed = f"worker {worker} is suspected: rank 2 was the first with an abnormal value, at step"
    assert f"{blamed} 120\n" in told
    assert f"stopping all tasks: rank 2 on {worker} reported loss 940.1 at step 120" in told
    [second] = re.findall(r"attempt 2: reserved 4 tasks on (.*)", told)
    assert worker not in second.split(", ")
    assert printed.count("begins after step 100, attempt 2") == 4
    assert "trained: weights 2.00 and -2.98" in printed
    assert shown.startswith("████████████████████ step 300 of 300 (100%)\n")
    assert "loss of rank 0, by step\n" in shown


def test_an_elastic_gang_shrinks_and_loses_nothing(small: Terminal) -> None:
    gang, urgent, logs = map(words_of, commands("An elastic gang"))
    assert small.type(*gang).status == 0
    # A task that has not started to count has nothing to save.
    until(lambda: small.type("logs", "elastic").out.count(" starts at ") == 4)
    assert small.type(*urgent).status == 0
    followed = small.type(*logs)
    assert followed.status == 0
    printed = followed.out
    told = small.type("events", "elastic").out
    assert "attempt 1: reserved 4 tasks" in told
    assert "shrinking for default/urgent: stopping tasks" in told
    assert printed.count(" stopped at ") == 2
    counted = re.findall(r"(\d+) primes from", printed)
    assert len(counted) == 6
    assert sum(map(int, counted)) == 6057  # the primes below 60,000


def test_pytorch_runs_on_a_cluster_of_an_environment_without_it(tmp_path: Path) -> None:
    """As the page says: the cluster runs in an activated environment, the tasks in another."""
    python = needed("torch", "python3-torch")
    port = free_port()
    activated = f"{Path(SCRIPT).parent}{os.pathsep}{os.environ['PATH']}"
    at = Terminal(f"http://127.0.0.1:{port}", PATH=activated)
    up = words_of(commands_at_the_top()[0])
    process = at.start(*up, f"--port={port}", f"--data={tmp_path / 'data'}")
    with Following(process) as running:
        assert running.line_with("Ctrl-C stops everything.", PATIENCE_S), running.seen
        _, command = commands("PyTorch")
        words = words_of(command.replace("/usr/bin/python3", python))
        at_dashes = words.index("--")
        quick = ("--env", "STEPS=20", "--env", "STEP_S=0")
        said = at.type(*words[:at_dashes], *quick, *words[at_dashes:])
        process.terminate()
        process.wait(PATIENCE_S)
    assert said.status == 0, said
    assert "trained: " in said.out


def test_training_that_loses_a_rank_ends_with_the_same_loss(tmp_path: Path) -> None:
    python = needed("torch", "python3-torch")
    with cluster(tmp_path, python) as at:
        command, _ = commands("PyTorch")
        with Following(at.start(*words_of(command))) as running:
            assert running.line_with("rank 1: process", LONG_S), running.seen
            process = int(re.findall(r"rank 1: process (\d+)", running.seen[-1])[0])
            assert running.line_with("step 50 of 300", LONG_S), running.seen
            os.kill(process, signal.SIGKILL)
            assert running.line_with("resuming after step", LONG_S), running.seen
            assert running.line_with("trained: ", LONG_S), running.seen
            assert running.process.wait(PATIENCE_S) == 0
            broken = running.seen[-1].partition("trained: ")[2]
        assert "was killed by SIGKILL" in at.type("events", "torch-ddp").out
    assert broken == undisturbed(python)


def undisturbed(python: str) -> str:
    """The same program without Phalanx: what it says of its training."""
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(  # noqa: S603
            [python, "examples/torch_ddp/train.py"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(PYTHONPATH=str(ROOT / "src"), RANK=str(rank), **world),
        )
        for rank in range(2)
    ]
    first, _ = [rank.communicate(timeout=LONG_S)[0] for rank in ranks]
    return first.partition("trained: ")[2]


def test_the_page_about_gpus_works_with_a_simulated_gpu(tmp_path: Path) -> None:
    python = needed("torch", "python3-torch")
    real, simulated = commands("An eviction on a real GPU", "gpu")
    settings, _, command = simulated.partition(" sh ")
    assert command == real.removeprefix("sh ") + " --gpus 1"
    given = dict(pair.split("=") for pair in settings.split())
    done = subprocess.run(  # noqa: S603
        ["/bin/sh", *command.split()],
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG_S,
        env=environment(PORT=str(free_port()), **variables(tmp_path, python), **given),
    )
    assert done.returncode == 0, done
    assert "preempted by higher-priority job default/gpu-urgent" in done.stdout
    assert "resuming after step" in done.stdout
    assert "The same with and without the eviction: loss " in done.stdout


@contextmanager
def hosts(folder: Path, python: str, count: int) -> Iterator[Terminal]:
    """Workers with addresses by which Open MPI takes them for different machines."""
    port = free_port()
    given = variables(folder, python) | {
        "OMPI_MCA_oob_tcp_if_include": "lo",
        "OMPI_MCA_btl_tcp_if_include": "lo",
        "OMPI_MCA_btl": "self,tcp",
    }
    at = Terminal(f"http://127.0.0.1:{port}", **given)
    with ExitStack() as stack:

        def start(*words: str) -> "subprocess.Popen[str]":
            process = at.start(*words)
            stack.enter_context(Following(process))
            return process

        start("serve", f"--port={port}", "--store=memory", f"--ports={given['PHALANX_PORTS']}")
        workers = [
            start(
                "worker",
                f"--id=host-{n}",
                f"--address=127.0.0.{n}",
                "--resources=gpu=1",
                f"--state-dir={folder / str(n)}",
            )
            for n in range(11, 11 + count)
        ]
        wait_for_workers(at, count)
        yield at
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(PATIENCE_S)


def test_mpi_runs_in_the_tasks_of_the_gang(tmp_path: Path) -> None:
    python = needed("mpi4py.MPI", "openmpi-bin", "python3-mpi4py")
    with hosts(tmp_path, python, 3) as at:
        printed = typed(at, "MPI")
    for rank in range(3):
        assert f"MPI rank {rank} of 3 in task {rank}: pi is 3.141593" in printed


def test_the_recipe_for_mpi_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_programs("mpirun")
    monkeypatch.chdir(tmp_path)
    # In one call, because mpirun mixes what its processes write in several.
    write = "os.write(1, b'rank ' + os.environb[b'OMPI_COMM_WORLD_RANK'] + b'\\n')"
    (tmp_path / "pi.py").write_text(f"import os\n{write}\n")
    [job] = [each for each in blocks("recipes", "yaml") if "mpirun" in each]
    as_root = ("OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
    with Fleet(tmp_path) as fleet:
        fleet.work("w-1", "--resources=cpu=2")
        words = ("submit", "-f", "-", "--wait", *(f"--env={each}" for each in as_root))
        said = fleet.terminal.type(*words, stdin=job)
        printed = fleet.terminal.type("logs", "with-mpi").out
        assert said.status == 0, (said.err, printed)
    assert sorted(printed.splitlines()) == [f"launcher/0 | rank {rank}" for rank in range(2)]


def test_torchrun_has_the_options_of_the_recipe() -> None:
    python = needed("torch", "python3-torch")
    [job] = [each for each in blocks("recipes", "yaml") if "torchrun" in each]
    options = re.findall(r"--[a-z][a-z_-]+", job)
    assert len(options) == 5
    run = [python, "-m", "torch.distributed.run", "--help"]
    shown = subprocess.run(run, check=True, capture_output=True, text=True).stdout  # noqa: S603
    assert [each for each in options if f"{each} " not in shown] == []
