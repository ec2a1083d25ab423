"""The recording of `make kube-demo`, a transcript in docs/how-to/kubernetes.md.

`python -m docs.kube_demo` runs the demo and replaces the transcript. A test fails if the demo and
the transcript differ.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "kubernetes.md"
BEGIN = "<!-- the output of `make kube-demo`, by `make recording`: begin -->\n```text\n"
END = "```\n<!-- end -->"


def transcript(page: str) -> str:
    """The transcript on the page."""
    return page.partition(BEGIN)[2].partition(END)[0]


def with_transcript(page: str, text: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + text + END + after


if __name__ == "__main__":
    command = [sys.executable, "-m", "examples.kube_demo"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    PAGE.write_text(with_transcript(PAGE.read_text("utf-8"), run.stdout), "utf-8")
