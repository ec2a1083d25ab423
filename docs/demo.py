"""The recording of `make demo`: a transcript in docs/how-to/examples.md, and docs/images/demo.svg.

`python -m docs.demo` draws the picture from the transcript; `python -m docs.demo --record` runs the
demo first and replaces the transcript. A test fails if transcript, picture and demo differ.
"""

import io
import re
import runpy
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "examples.md"
DEMO = ROOT / "examples" / "demo.py"
IMAGE = ROOT / "docs" / "images" / "demo.svg"
BEGIN = "<!-- the output of `make demo`, by `make recording`: begin -->\n```text\n"
END = "```\n<!-- end -->"
#: The picture ends before the commands to try.
_NOT_DRAWN = "\nTry it yourself"

_COLUMNS = 92
_CHARACTER_WIDTH = 12.2
_LEADING_BLANKS = re.compile(
    r'x="(?P<x>[\d.]+)" y="(?P<y>[\d.]+)" textLength="(?P<length>[\d.]+)"'
    r' (?P<clip>clip-path="[^"]*")>(?P<blanks>(?:&#160;)+)'
)
_THEME = TerminalTheme(
    (13, 17, 23),
    (201, 209, 217),
    [
        (72, 79, 88),
        (255, 123, 114),
        (63, 185, 80),
        (210, 153, 34),
        (88, 166, 255),
        (188, 140, 255),
        (57, 197, 207),
        (177, 186, 196),
    ],
)


def transcript(page: str) -> str:
    """The transcript on the page."""
    _, _, rest = page.partition(BEGIN)
    return rest.partition(END)[0]


def with_transcript(page: str, text: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + text + END + after


def picture(text: str) -> str:
    """The transcript as an SVG of a terminal, which loads no fonts from other hosts."""
    console = Console(
        file=io.StringIO(),
        record=True,
        width=_COLUMNS,
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    styled = runpy.run_path(str(DEMO))["styled"]
    for line in text.partition(_NOT_DRAWN)[0].splitlines():
        console.print(styled(line), soft_wrap=True)
    svg = console.export_svg(title="make demo", theme=_THEME, unique_id="demo")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<text [^>]*>\n</text>", "", svg)
    svg = _LEADING_BLANKS.sub(_moved, svg)
    fonts = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
    return svg.replace("Fira Code, monospace", fonts)


def _moved(text: "re.Match[str]") -> str:
    """The start of a text without its leading blanks, which some viewers drop."""
    indent = _CHARACTER_WIDTH * text["blanks"].count("&")
    x, length = float(text["x"]) + indent, float(text["length"]) - indent
    return f'x="{x:g}" y="{text["y"]}" textLength="{length:g}" {text["clip"]}>'


def record() -> str:
    """The output of the demo."""
    command = [sys.executable, str(DEMO)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603


if __name__ == "__main__":
    if "--record" in sys.argv[1:]:
        PAGE.write_text(with_transcript(PAGE.read_text("utf-8"), record()), "utf-8")
    IMAGE.write_text(picture(transcript(PAGE.read_text("utf-8"))), "utf-8")
