"""The output of `make kube-demo`."""

import re
import subprocess
import sys
from pathlib import Path

from docs import kube_demo as recording

from tests.acceptance.terminal import environment
from tests.kubernetes.binaries import ROOT

#: The course of the demo, in this order.
ESSENTIAL = (
    "phalanx-1 leads, phalanx-2 stands by",
    "TFJob tf-smoke-gpu: 5 pods, which need 8 GPUs.",
    "never fits: the gang needs 8 GPUs",
    "tf-smoke-gpu-worker-3  pending  -     Unschedulable",
    "Two more nodes",
    "tf-smoke-gpu  ",
    "All 5 pods were running",
    "default/urgent: evicts default/tf-smoke-gpu (5 pods)",
    "preempted by higher-priority gang default/urgent",
    "$ kill -9",
    "2/5  partial",
    "has expired, and completes the gang",
    "5/5  running",
    "All 5 pods were running",
    "Everything has been shut down.",
)


def lines_of(transcript: str) -> list[str]:
    """Commands and paragraphs without numbers, plurals, blanks and wraps, which differ from run to
    run. So do the events, which depend on how fast pods are created."""
    singular = re.sub(r"(\d+ [\w-]+?)s?(?![\w-])", r"\1", transcript)
    numberless = re.sub(r"[\d.]+", "0", re.sub(r"\d+[smh](?: \d+[smh])?(?: ago)?", "0", singular))
    commands = re.split(r"\n(?=\$ |\n)", numberless)
    parts = [" ".join(each.split()) for each in commands if each.strip()]
    return [part for part in parts if not part.startswith("0: ")]


def test_the_demo_prints_what_was_recorded(
    control_plane_binary: Path, kwok_binary: Path, tmp_path: Path
) -> None:
    recorded = recording.transcript(recording.PAGE.read_text("utf-8"))
    demo = subprocess.run(
        [sys.executable, "-m", "examples.kube_demo"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment(TMPDIR=str(tmp_path)),
        timeout=600,
    )
    assert (demo.stderr, demo.returncode) == ("", 0), demo.stdout
    for transcript in (demo.stdout, recorded):
        unwrapped, at = " ".join(transcript.split()), -1
        for words in ESSENTIAL:
            at = unwrapped.find(" ".join(words.split()), at + 1)
            assert at >= 0, f"{words!r} is missing, or comes too early: {transcript}"
        assert max(map(len, transcript.splitlines())) <= 80
    assert lines_of(demo.stdout) == lines_of(recorded), "run `make recording`"
    assert list(tmp_path.iterdir()) == [], "the demo leaves files behind"
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert "\nkube-demo: $(READY)" in makefile
    assert "\n\t$(BIN)/python -m examples.kube_demo\n" in makefile
