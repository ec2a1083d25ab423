"""The pages say what is so: commands exist, links lead somewhere, examples are accepted."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from docs import demo, diagram
from tests.manifests import jobs_of

from phalanx.core.errors import Invalid
from phalanx.core.states import TABLE

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
#: Held to the code by a test of its own.
REFERENCE = ROOT / "docs" / "reference" / "job.md"
#: Full of keys that look like paths; test_manifest_pages runs its examples.
MANIFESTS = ROOT / "docs" / "manifests"
#: Shows commands of phalanx; test_configuration_page runs them.
HOW_TO = ROOT / "docs" / "how-to"
#: Manifests for a cluster; tests/kubernetes/test_installation creates them there.
KUBERNETES = [HOW_TO / "kubernetes.md", HOW_TO / "migrate.md"]
#: Show them too; tests/acceptance/test_tutorial and test_walkthrough type them.
TUTORIAL = ROOT / "docs" / "tutorial.md"
WALKTHROUGH = ROOT / "docs" / "walkthrough.md"

#: How the folder list marks a package that need not be there.
PROMISES = ("(being built)", "(not built yet)")

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FILE = re.compile(r"[\w.-]+(?:/[\w.-]+)+")


class Found(NamedTuple):
    """Something on a page."""

    page: Path
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text.strip().splitlines()[0]}"


def blocks(language: str) -> list[Found]:
    return [
        Found(page, text)
        for page in PAGES
        for found, text in FENCE.findall(page.read_text("utf-8"))
        if found == language
    ]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text("utf-8"))


def commands() -> Iterator[Found]:
    """Lines of `sh` blocks, and whatever in running text begins with make."""
    for page, text in blocks("sh"):
        if page.is_relative_to(HOW_TO) or page in (TUTORIAL, WALKTHROUGH):
            continue
        yield from (Found(page, line) for line in text.splitlines() if line.strip())
    for page in PAGES:
        yield from (Found(page, code) for code in INLINE.findall(prose(page)) if _is_make(code))


def _is_make(code: str) -> bool:
    return code.partition(" ")[0] == "make"


def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    return set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))


@pytest.mark.parametrize("command", list(commands()), ids=str)
def test_every_command_is_a_target_of_make(command: Found) -> None:
    program, target, *settings = shlex.split(command.text)
    assert program == "make", f"{command}: only commands of make are shown; they work everywhere"
    assert target in targets()
    assert all(setting.startswith("ARGS=") for setting in settings)


@pytest.mark.parametrize("target", sorted(targets() - {"help", "clean"}))
def test_every_target_is_explained_to_contributors(target: str) -> None:
    assert f"`make {target}`" in (ROOT / "CONTRIBUTING.md").read_text("utf-8")


@pytest.mark.parametrize(
    "block",
    [b for b in blocks("yaml") if b.page not in {REFERENCE, *MANIFESTS.iterdir(), *KUBERNETES}],
    ids=str,
)
def test_every_job_that_is_shown_is_accepted(block: Found) -> None:
    [spec] = jobs_of(block.text.encode())
    assert spec.size >= 1


def test_every_piece_of_python_can_be_parsed() -> None:
    for block in blocks("python"):
        ast.parse(block.text, filename=str(block))


def test_the_refusal_on_the_front_page_is_what_a_user_reads() -> None:
    bad = b"roles: {worker: {command: train, replicas: 8, min: 9}}"
    with pytest.raises(Invalid) as refused:
        jobs_of(bad)
    assert f"`{refused.value}`" in (ROOT / "README.md").read_text("utf-8")


def test_blocks_name_a_language_that_is_checked() -> None:
    known = {"", "sh", "yaml", "json", "python", "text", "toml", "mermaid"}
    used = {language for page in PAGES for language, _ in FENCE.findall(page.read_text("utf-8"))}
    assert used <= known


def links() -> list[Found]:
    return [
        Found(page, link)
        for page in PAGES
        for link in LINK.findall(prose(page))
        if not link.startswith("https://")
    ]


@pytest.mark.parametrize("link", links(), ids=str)
def test_every_link_leads_somewhere(link: Found) -> None:
    path, _, anchor = link.text.partition("#")
    target = (link.page.parent / path).resolve() if path else link.page
    assert target.exists()
    if anchor:
        headings = HEADING.findall(target.read_text("utf-8"))
        assert anchor in [_anchor(heading) for heading in headings]


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(link.page.parent / link.text).resolve() for link in links() if link.page == index}
    assert {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - {index} <= linked


def files() -> list[Found]:
    """Paths in running text, as far as they look like ours."""
    return [
        Found(page, code.rstrip("/"))
        for page in PAGES
        if page not in {REFERENCE, *MANIFESTS.iterdir(), *KUBERNETES}
        for code in INLINE.findall(prose(page))
        if FILE.fullmatch(code) and not code.startswith("phalanx.dev/")  # a key of an object
    ]


@pytest.mark.parametrize("file", files(), ids=str)
def test_every_file_that_is_named_exists(file: Found) -> None:
    assert any((root / file.text).exists() for root in (ROOT, ROOT / "src" / "phalanx"))


def folders() -> dict[str, str]:
    """The packages in the folder list of the architecture, each with what is said of it."""
    listed = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    return dict(re.findall(r"^  ([a-z]+)/ +(.*)$", listed, re.MULTILINE))


def test_the_folder_list_is_the_architecture() -> None:
    there = {path.parent.name for path in (ROOT / "src" / "phalanx").glob("*/__init__.py")}
    listed = folders()
    assert there <= listed.keys(), "list the package in docs/architecture.md"
    promised = {name for name, text in listed.items() if text.endswith(PROMISES)}
    assert listed.keys() - promised <= there, "say in docs/architecture.md that it is not built yet"


def test_the_state_machine_on_the_page_is_the_one_in_the_code() -> None:
    page = diagram.PAGE.read_text("utf-8")
    assert diagram.BEGIN in page
    assert diagram.with_block(page) == page, "run `make docs`"


def test_the_diagram_and_the_rules_leave_nothing_out() -> None:
    arrows, rules = diagram.mermaid().splitlines(), diagram.rules().splitlines()
    for rule in TABLE:
        for target in rule.targets:
            arrow = f"{diagram.source_of(rule)} --> {diagram.target_of(target)}: "
            assert any(arrow in line and rule.move.value in line for line in arrows)
            assert any(
                line.startswith(f"| `{rule.source.value}`")
                and f"`{rule.move.value}`" in line
                and f"`{target.value}`" in line
                for line in rules
            )


def test_the_changelog_has_a_place_for_what_comes_next() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    sections = re.findall(r"^## (.+)$", changelog, re.MULTILINE)
    assert sections[0] == "Unreleased"


def test_the_picture_of_the_demo_is_drawn_from_its_transcript() -> None:
    transcript = demo.transcript(demo.PAGE.read_text("utf-8"))
    assert "$ kill -9" in transcript
    assert demo.IMAGE.read_text("utf-8") == demo.picture(transcript), "run `make docs`"
    assert "docs/images/demo.svg" in (ROOT / "README.md").read_text("utf-8")
