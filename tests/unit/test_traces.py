"""Trace files: what is read, and that an error names its line."""

from pathlib import Path

import pytest

from phalanx.core.time_units import SECOND
from phalanx.sim.traces import Trace, TraceError, read_trace

HEAD = "job_id,submit_s,duration_s,user_or_vc,gang_size,gpus_per_task,cpus_per_task,mem_mb_per_task"
NODES = "node,gpus,cpus,mem_mb,gpu_model\nn1,8,64,1024,A100\nn2,8,64,1024,A100\n"


def read(folder: Path, jobs: str, nodes: str = NODES, queues: str | None = None) -> Trace:
    files = {"jobs.csv": jobs, "nodes.csv": nodes, "queues.csv": queues or ""}
    for name, text in files.items():
        (folder / name).write_text(text)
    return read_trace(
        folder / "jobs.csv", folder / "nodes.csv", folder / "queues.csv" if queues else None
    )


def test_a_trace_is_read_in_the_order_of_its_submissions(tmp_path: Path) -> None:
    trace = read(tmp_path, f"{HEAD}\nlate,7.5,60,blue,2,1,4,512\nearly,1,3600,,1,0.5,,\n")
    early, late = trace.jobs
    assert (early.id, early.queue, early.resources) == ("early", "default", {"gpu": 500})
    assert (late.at, late.duration, late.size) == (round(7.5 * SECOND), 60 * SECOND, 2)
    assert late.resources == {"gpu": 1000, "cpu": 4000, "memory": 512 * 2**20}
    assert [queue.name for queue in trace.queues] == ["blue", "default"]
    assert trace.gpu == 16_000


def test_a_resource_that_is_unknown_for_a_node_is_ignored(tmp_path: Path) -> None:
    nodes = "node,gpus,cpus,mem_mb\nn1,8,64,\nn2,8,64,1024\n"
    trace = read(tmp_path, f"{HEAD}\na,0,1,q,1,1,4,99999999\n", nodes)
    assert trace.jobs[0].resources == {"gpu": 1000, "cpu": 4000}
    assert trace.nodes[1].resources == {"gpu": 8000, "cpu": 64_000}


def test_a_job_that_never_fits_is_left_out_with_the_reason(tmp_path: Path) -> None:
    wrong = "wide,0,1,q,3,5,,\nfat,0,1,q,1,9,,\nlarge,0,1,q,1,1,1,2048\nfractions,0,1,q,24,0.7,,\n"
    trace = read(tmp_path, f"{HEAD}\nfits,0,1,q,2,8,,\n{wrong}")
    assert [job.id for job in trace.jobs] == ["fits"]
    assert trace.misfits == {
        "wide": "the gang needs 15 GPUs, at most 10 fit on the empty cluster",
        "fat": "each task needs 9 GPUs, the largest node has 8",
        "large": "each task needs 2Gi memory, the largest node has 1Gi",
        "fractions": "the gang needs 16.8 GPUs, at most 11.2 fit on the empty cluster",
    }


def test_a_job_above_the_limit_of_a_queue_is_left_out_with_the_reason(tmp_path: Path) -> None:
    queues = "queue,parent,limit_gpu\nlab,,6\nred,lab,4\nblue,lab,\nfree,,\n"
    jobs = "fits,0,1,red,2,2,,\nwide,0,1,red,5,1,,\nfat,0,1,blue,1,7,,\nfree,0,1,free,8,1,,\n"
    trace = read(tmp_path, f"{HEAD}\n{jobs}", queues=queues)
    assert [job.id for job in trace.jobs] == ["fits", "free"]
    assert trace.misfits == {
        "wide": "the gang needs 5 GPUs, the limit of queue red is 4",
        "fat": "the gang needs 7 GPUs, the limit of queue lab is 6",
    }


def test_queues_have_weights_quotas_and_limits(tmp_path: Path) -> None:
    queues = "queue,parent,weight,quota_gpu,limit_gpu\nred,,3,4,\nblue,red,,,8\n"
    trace = read(tmp_path, f"{HEAD}\na,0,1,green,1,1,,\n", queues=queues)
    red, blue, green = trace.queues
    assert (red.weight, red.quota, red.limit) == (3, {"gpu": 4000}, {})
    assert (blue.parent, blue.weight, blue.limit) == ("red", 1, {"gpu": 8000})
    assert (green.name, green.weight) == ("green", 1)


def test_quotas_of_virtual_clusters_are_understood(tmp_path: Path) -> None:
    trace = read(tmp_path, f"{HEAD}\na,0,1,6214e9,1,1,,\n", queues="vc,nodes,gpus\n6214e9,64,512\n")
    assert [(queue.name, queue.quota) for queue in trace.queues] == [("6214e9", {"gpu": 512_000})]


@pytest.mark.parametrize(
    ("jobs", "error"),
    [
        (
            "job_id,submit_s\na,1\n",
            "line 1: the column duration_s is missing; this file needs job_id",
        ),
        (f"{HEAD}\na,0,1,q,1,1,,\nb,-1,1,q,1,1,,\n", "line 3: submit_s is -1; write seconds"),
        (f"{HEAD}\na,0,nan,q,1,1,,\n", "line 2: duration_s is nan; write seconds"),
        (f"{HEAD}\na,0,soon,q,1,1,,\n", "line 2: duration_s is 'soon', not a number"),
        (f"{HEAD}\na,0,,q,1,1,,\n", "line 2: duration_s is empty"),
        (f"{HEAD}\na,0,1,q,0,1,,\n", "line 2: gang_size is '0'; write a whole number from 1"),
        (f"{HEAD}\na,0,1,q,1.5,1,,\n", "line 2: gang_size is '1.5'; write a whole number"),
        (f"{HEAD}\na,0,1,q,1,-1,,\n", 'line 2: gpus_per_task is "-1"; it cannot be negative'),
        (f"{HEAD}\na,0,1,q,1,1.5,,\n", 'line 2: gpus_per_task is "1.5"; a task uses a fraction'),
        (
            f"{HEAD}\na,0,1,q,1,1,,\na,0,1,q,1,1,,\n",
            "line 3: job_id is a, which an earlier line has too",
        ),
        (f"{HEAD}\na,0,1,q\n", "line 2: has 4 values for 8 columns"),
        (f"{HEAD}\n", "has no jobs"),
        ("", "line 1: the column job_id is missing"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, jobs: str, error: str) -> None:
    with pytest.raises(TraceError) as refused:
        read(tmp_path, jobs)
    assert error in str(refused.value)
    assert "jobs.csv" in str(refused.value)


@pytest.mark.parametrize(
    ("queues", "error"),
    [
        ("queue,wieght\nred,3\n", "line 1: the column wieght is unknown; use queue, parent"),
        ("queue,weight\nred,-3\n", "line 2: weight is '-3'"),
        (
            "queue,parent\nred,blue\n",
            "line 2: parent is blue, which is not a queue of an earlier line",
        ),
        ("queue\nred\nred\n", "line 3: queue is red, which an earlier line has too"),
    ],
)
def test_a_wrong_queue_is_named(tmp_path: Path, queues: str, error: str) -> None:
    with pytest.raises(TraceError) as refused:
        read(tmp_path, f"{HEAD}\na,0,1,red,1,1,,\n", queues=queues)
    assert error in str(refused.value)


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "none.csv", tmp_path / "none.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="not a CSV file in UTF-8"):
        read_trace(tmp_path / "bytes.csv", tmp_path / "bytes.csv")
