"""What people read is plain technical English: phrases of a private vocabulary are refused.

Read are the pages, and in the code every string, docstring and comment.
"""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CODE = sorted(
    path for folder in ("src", "examples", "docs") for path in (ROOT / folder).rglob("*.py")
)
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))

#: A phrase, and what to write instead.
REFUSED = {
    r"pretended": "simulated",
    r"nobody|somebody|anybody|everybody|whoever|whomever": "name the subject: job, worker, user …",
    r"waits? again": "is requeued",
    r"may start": "starts, or: released",
    r"places for": "reserved N tasks on …",
    r"(?:gives?|gave|giving) way": "is evicted",
    r"(?:has|have|had) to (?:go|give)": "is evicted",
    r"is the most": "the largest node has …",
    r"is kept free": "reserved start",
    r"takes nothing new": "cordoned",
    r"(?:is|being) emptied": "draining",
    r"as things are|as it stands": "say what is the case",
    r"(?:is|are|was|were|be|it) owed": "deserves, quota",
    r"(?:stands?|standing) in (?:a |the )?line": "is pending",
    r"in vain": "say what cannot happen",
    r"claimants?": "preemptor, or: gang",
    r"tenants?": "running gang, or: team",
    r"(?:all|whatever|what) that (?:is|was) left": "what remains, the rest",
    r"(?:is|are|was|were) told": "say who sends what to whom",
    r"room (?:that|which) (?:is|was|others)|makes? room": "capacity, free",
    r"has starved": "is starving",
    r"the price of an? (?:stop|eviction)": "lost work",
    r"epoch [0-9{]": "attempt N",
}
PHRASES = {
    re.compile(rf"\b(?:{phrase})\b", re.IGNORECASE): cure for phrase, cure in REFUSED.items()
}
#: The plain protocol keeps the names of the system whose workers speak it.
EXEMPT = {"src/phalanx/engine/plain", "src/phalanx/api/plain_protocol.py"}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The text of a file that people read, with the line on which it begins."""
    source = path.read_text("utf-8")
    if path.suffix != ".py":
        yield from enumerate(source.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            yield from enumerate(token.string.splitlines(), token.start[0])


def refused(path: Path) -> Iterator[str]:
    for line, text in texts(path):
        for phrase, cure in PHRASES.items():
            if (said := phrase.search(text)) is not None:
                yield f"{path.relative_to(ROOT)}:{line}: {said[0]!r}; {cure}"


@pytest.mark.parametrize("path", [*PAGES, *CODE, *EXAMPLES], ids=lambda p: str(p.relative_to(ROOT)))
def test_what_people_read_is_in_plain_words(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    if any(name.startswith(exempt) for exempt in EXEMPT):
        return
    assert not list(refused(path))


def test_a_refused_phrase_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("Whoever waits again may start.\n")
    assert len(list(refused(page))) == 3
    code = tmp_path / "code.py"
    code.write_text('x = 1  # nobody\n\n\ndef f() -> str:\n    return "it gives way"\n')
    assert [found.split(": ")[0] for found in refused(code)] == ["code.py:1", "code.py:5"]
