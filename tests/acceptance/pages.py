"""The commands and blocks of a page of the documentation."""

import re
import shlex
from pathlib import Path

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


def blocks(page: str, language: str) -> list[str]:
    """The blocks of a language on a page of docs/how-to."""
    text = (HOW_TO / f"{page}.md").read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[list[str]]:
    """The words after `phalanx` of every line that is to be typed."""
    lines = [shlex.split(line) for block in blocks(page, "sh") for line in block.splitlines()]
    assert lines
    assert all(line[0] == "phalanx" for line in lines)
    return [line[1:] for line in lines]
