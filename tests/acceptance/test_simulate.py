"""A trace is replayed from the command line, and the page about it needs nothing but itself."""

import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.acceptance.terminal import Said, Terminal

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "simulate.md"

JOBS = """\
job_id,submit_s,duration_s,user_or_vc,gang_size,gpus_per_task,cpus_per_task,mem_mb_per_task,status
long,0,100,red,4,1,,,
whole,1,50,blue,8,1,,,
short,2,20,red,4,1,,,
longer,3,500,blue,4,1,,,
"""
NODES = "node,gpus,cpus,mem_mb,gpu_model\nn1,8,,,\nn2,8,,,\n"
QUEUES = "queue,weight,quota_gpu\nred,1,4\nblue,1,\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"jobs": JOBS, "nodes": NODES, "queues": QUEUES}.items():
        (tmp_path / f"{name}.csv").write_text(text)
    return tmp_path


def simulate(folder: Path, *flags: str) -> Said:
    files = ("--jobs", str(folder / "jobs.csv"), "--nodes", str(folder / "nodes.csv"))
    return Terminal("http://127.0.0.1:1").type("simulate", *files, *flags)


class Page(HTMLParser):
    """What is on a page, by tag, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= dict(attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= dict(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag or tag == "p"

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_policies_are_compared_side_by_side(folder: Path) -> None:
    said = simulate(folder, "--nodes-limit", "1", "--compare", "fcfs")
    assert said.status == 0, said.err
    lines = [line.split() for line in said.out.splitlines()]
    assert lines[0] == ["phalanx", "fcfs"]
    assert ["wait", "time,", "mean", "1m", "1s", "1m", "38s"] in lines
    assert ["jobs", "done", "4", "of", "4", "4", "of", "4"] in lines
    assert any(line[:2] == ["5-8", "1"] for line in lines)


def test_json_has_the_same_numbers(folder: Path) -> None:
    ours, baseline = simulate(folder, "--nodes-limit", "1", "--compare", "fcfs", "--json").json
    assert ours["policy"] == "phalanx"
    assert ours["wait"]["mean"] == pytest.approx((0 + 99 + 0 + 147) / 4)
    assert baseline["wait"]["mean"] == pytest.approx((0 + 99 + 148 + 147) / 4)
    assert set(ours["wait_by_queue"]) == {"red", "blue"}


def test_the_report_has_numbers_and_plots_and_loads_nothing_else(folder: Path) -> None:
    report = folder / "report.html"
    said = simulate(folder, "--nodes-limit", "1", "--compare", "fcfs", "--report", str(report))
    assert said.status == 0, said.err
    text = report.read_text("utf-8")
    page = Page(text)
    assert not page.open
    assert page.tags.count("svg") == 3
    assert page.tags.count("polyline") == 3
    assert page.tags.count("rect") == 4 + 4
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not {"src", "href"} & page.attributes.keys()
    assert "http" not in text
    assert "1m 38s" in page.texts
    assert any("4 jobs of jobs.csv in 2 queues, on 1 node with 8 GPUs" in t for t in page.texts)


def test_a_job_that_never_fits_is_left_out_with_a_warning(folder: Path) -> None:
    (folder / "jobs.csv").write_text(f"{JOBS}huge,4,10,red,9,2,,,\n")
    said = simulate(folder, "--json")
    assert said.status == 0
    assert said.err.splitlines()[0] == (
        "warning: job huge is left out, it will not start: the gang needs 18 GPUs, at most 16 fit"
        " on the empty cluster"
    )
    assert [result["never_fit"] for result in said.json] == [1]


def test_only_a_few_of_the_jobs_that_are_left_out_are_named(folder: Path) -> None:
    huge = "".join(f"huge-{number},4,10,red,9,2,,,\n" for number in range(6))
    (folder / "jobs.csv").write_text(JOBS + huge)
    assert simulate(folder).err.splitlines()[5] == "warning: 1 more job is left out"
    (folder / "jobs.csv").write_text(f"{JOBS}{huge}huge,4,10,red,9,2,,,\n")
    assert simulate(folder).err.splitlines()[5] == "warning: 2 more jobs are left out"


def test_quiet_prints_no_warnings_and_the_same_results(folder: Path) -> None:
    (folder / "jobs.csv").write_text(f"{JOBS}huge,4,10,red,9,2,,,\n")
    said = simulate(folder, "--quiet")
    assert (said.status, said.err) == (0, "")
    assert said.out.splitlines()[0].split() == ["phalanx"]
    assert simulate(folder).err != ""


def test_a_job_above_the_limit_of_its_queue_is_left_out_with_a_warning(folder: Path) -> None:
    (folder / "limits.csv").write_text("queue,limit_gpu\nblue,4\n")
    said = simulate(folder, "--queues", str(folder / "limits.csv"), "--json")
    assert said.status == 0
    why = (
        "job whole is left out, it will not start: the gang needs 8 GPUs, the limit of queue blue"
        " is 4"
    )
    assert why in said.err
    [result] = said.json
    assert (result["jobs"], result["done"], result["never_fit"]) == (3, 3, 1)
    assert result["still_pending"] == 0


def test_a_trace_of_which_no_job_fits_is_refused(folder: Path) -> None:
    (folder / "limits.csv").write_text("queue,limit_gpu\nblue,3\nred,3\n")
    said = simulate(folder, "--queues", str(folder / "limits.csv"))
    assert said.status == 2
    assert "no job of the trace fits the nodes and the limits; nothing to replay" in said.err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--order", "priority,age"), "--order is 'priority,age'; write each of priority, size"),
        (("--order", "size,size"), "at most once"),
        (("--compare", "lifo"), "--compare is 'lifo'; write one of fcfs, easy, sjf, las"),
        (("--queues", "none.csv"), "none.csv: No such file or directory"),
        (("--report", "/nonexistent/report.html"), "/nonexistent/report.html: No such file"),
    ],
)
def test_a_wrong_flag_is_named(folder: Path, flags: tuple[str, ...], told: str) -> None:
    said = simulate(folder, *flags)
    assert said.status == 2
    assert told in said.err


def test_a_wrong_line_is_refused(folder: Path) -> None:
    (folder / "jobs.csv").write_text(JOBS.replace("whole,1,50", "whole,1,-50"))
    said = simulate(folder)
    assert said.status == 2
    assert "jobs.csv, line 3: duration_s is -50" in said.err


def commands() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


@pytest.mark.parametrize("command", commands())
def test_every_command_of_the_page_works(
    folder: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    # The page uses the Philly trace; here a small trace takes its place.
    for name in ("jobs", "nodes", "queues"):
        (folder / f"philly_{name}.csv").write_text((folder / f"{name}.csv").read_text())
    (folder / "philly_half.csv").write_text(JOBS)
    program, *words = shlex.split(command)
    assert program == "phalanx"
    said = Terminal("http://127.0.0.1:1").type(*words)
    assert said.status == 0, said.err
    assert "utilisation" in said.out


def test_max_wait_bounds_the_wait_of_a_job_whose_queue_has_its_share(folder: Path) -> None:
    stream = "".join(f"b{n},{90 * n},100,blue,1,1,,,\n" for n in range(40))
    jobs = f"{JOBS.splitlines()[0]}\nr1,0,100000,red,1,1,,,\nr2,1,100,red,1,1,,,\n{stream}"
    (folder / "jobs.csv").write_text(jobs)
    (folder / "nodes.csv").write_text("node,gpus\nn1,2\n")

    def longest_wait_s(*flags: str) -> float:
        said = simulate(folder, *flags, "--json")
        assert said.status == 0, said.err
        [result] = json.loads(said.out)
        longest: float = result["wait_by_queue"]["red"]["longest"]
        return longest

    assert longest_wait_s() < 2000
    assert longest_wait_s("--max-wait", "0") > 3600
    assert longest_wait_s("--max-wait", "0", "--share-half-life", "3600") > 3600
