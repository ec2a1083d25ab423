"""The house rules that a machine can hold: direction of imports, purity, size, names, honesty.

Each rule is a checker over one file and a test over all of them. The last test feeds every checker
something bad, so that none of them passes because it sees nothing.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: package → what it may import besides itself. Rows may name packages that do not exist yet; a
#: package without a row is refused.
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "dashboard": set(),
    "host": set(),
    "plan": {"core"},
    "scenario": {"core", "plan"},
    "store": {"core", "host"},
    "manifest": {"core"},
    "wire": {"core"},
    "tls": {"host"},
    "engine": {"core", "plan", "store", "wire"},
    "identity": {"core", "store", "host"},
    "secrets": {"core", "host", "store", "engine"},
    "registry": {"wire"},
    "policy": {"registry", "wire", "core", "store", "engine", "identity"},
    "api": {
        "dashboard",
        "policy",
        "secrets",
        "tls",
        "host",
        "core",
        "plan",
        "store",
        "manifest",
        "wire",
        "engine",
        "identity",
    },
    "agent": {"registry", "core", "wire", "tls", "host"},
    "client": {"core", "manifest", "wire", "tls"},
    "server": {
        "registry",
        "policy",
        "secrets",
        "core",
        "plan",
        "store",
        "wire",
        "engine",
        "identity",
        "api",
        "tls",
        "host",
    },
    "cli": {
        *(
            "core",
            "plan",
            "scenario",
            "store",
            "manifest",
            "wire",
            "client",
            "agent",
            "identity",
            "api",
            "server",
            "policy",
            "secrets",
            "sim",
            "tls",
            "host",
            "kube",
        ),
    },
    "sim": {"core", "plan", "store", "manifest", "wire", "engine", "api", "agent", "dashboard"},
    "kube": {"core", "plan", "manifest", "host"},
}

#: Packages without I/O, clock or chance.
PURE = ("core", "plan")
#: All that they may import from outside; none of it can reach the world.
PURE_IMPORTS = {
    *("abc", "bisect", "collections", "dataclasses", "datetime", "difflib", "enum", "fractions"),
    *("functools", "heapq", "itertools", "json", "math", "operator", "re", "string", "types"),
    *("fnmatch", "typing", "msgspec"),
}
PURE_IMPORTS_OF = {"plan": {"numpy", "zlib"}}
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "breakpoint", "__import__"}
#: `datetime` may format a time that was given; it may not ask for one.
CLOCK_METHODS = {"now", "utcnow", "today"}

NAMELESS = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}
FUNCTION_LINES = 60
#: The words that names of files and folders are made of: a name that needs a docstring to be
#: understood is found here before it is merged. Add a word if a newcomer would look for it.
TOPICS = frozenset((Path(__file__).parent / "topics.txt").read_text("utf-8").split())
#: Public class names that stand for two things, each with the reason. There is none.
REPEATED_CLASSES: set[str] = set()
DOCSTRING_LINES = 6
#: Packages whose business it is to print.
PRINTERS = {"cli"}
#: Tests that may sleep. There is none: wait for what you need, or move a clock of your own.
SLEEPERS: set[str] = set()
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME)\b")


class Source:
    """A file by its path from the root."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def module(self) -> str:
        """`core.states` for src/phalanx/core/states.py."""
        name = self.path.removeprefix("src/phalanx/").removesuffix(".py").replace("/", ".")
        return name.removesuffix(".__init__")

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    @cached_property
    def _by_kind(self) -> dict[type[ast.AST], list[ast.AST]]:
        """All nodes; the rules ask for a few kinds of the same files again and again."""
        found: dict[type[ast.AST], list[ast.AST]] = {}
        for node in ast.walk(self.tree):
            found.setdefault(type(node), []).append(node)
        return found

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        return (
            node
            for kind, nodes in self._by_kind.items()
            if issubclass(kind, kinds)
            for node in nodes
        )


Checker = Callable[[Source], Iterator[str]]


def sources(*folders: str) -> list[Source]:
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [Source(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in paths]


def broken(checker: Checker, files: Iterable[Source]) -> str:
    """Everything that the checker finds, one per line."""
    return "\n".join(f"{file.path}: {found}" for file in files for found in checker(file))


SRC = sources("src/phalanx")
PYTHON = [*SRC, *sources("tests", "benchmarks", "chaos", "examples", "docs")]
TESTS = [file for file in PYTHON if file.path.startswith("tests/")]
IN_PACKAGES = [file for file in SRC if "/" in file.path.removeprefix("src/phalanx/")]
IN_PURE = [file for file in IN_PACKAGES if file.package in PURE]


# Direction


def imports(file: Source) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported, wherever the import stands."""
    for node in file.nodes(ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = ["phalanx", *file.module.split(".")][: -node.level]
                base = ".".join([*above, base]).rstrip(".")
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def direction(file: Source) -> Iterator[str]:
    if file.package not in MAY_IMPORT:
        yield f"package {file.package} has no row in MAY_IMPORT; say there what it may import"
        return
    allowed = MAY_IMPORT[file.package]
    for line, name in imports(file):
        top, _, rest = name.partition(".")
        if top == "phalanx" and rest.partition(".")[0] not in {file.package} | allowed:
            listed = ", ".join(sorted(allowed)) or "nothing else of Phalanx"
            yield f"line {line} imports {name}; {file.package} may import {listed}"


def test_imports_go_one_way() -> None:
    assert not broken(direction, IN_PACKAGES)


# Purity


def pure_imports(file: Source) -> Iterator[str]:
    known = PURE_IMPORTS | PURE_IMPORTS_OF.get(file.package, set()) | {"phalanx"}
    for line, name in imports(file):
        if name.partition(".")[0] not in known:
            yield (
                f"line {line} imports {name}; {file.package} has no I/O, clock, chance or logging:"
                " let the caller pass in what it needs"
            )


def pure_calls(file: Source) -> Iterator[str]:
    for node in file.nodes(ast.Call, ast.Attribute, ast.AsyncFunctionDef, ast.Await):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in IMPURE_CALLS:
                yield f"line {node.lineno} calls {node.func.id}; return it and let the shell do it"
        elif isinstance(node, ast.Attribute) and node.attr in CLOCK_METHODS:
            asked = ast.unparse(node.value).rpartition(".")[2]
            if asked in ("datetime", "date"):
                yield f"line {node.lineno} asks the clock; take `now` as an argument"
        elif isinstance(node, ast.AsyncFunctionDef | ast.Await):
            yield f"line {node.lineno} awaits; {file.package} waits for nothing"


def test_core_and_plan_import_only_what_is_pure() -> None:
    assert not broken(pure_imports, IN_PURE)


def test_core_and_plan_ask_the_world_for_nothing() -> None:
    assert not broken(pure_calls, IN_PURE)


# Shape


def name(file: Source) -> Iterator[str]:
    found = NAMELESS.intersection(file.path.removesuffix(".py").split("/"))
    if found:
        yield f"{found.pop()} says nothing; name it after the one noun it is about"


def test_every_file_is_named_after_what_it_is_about() -> None:
    assert not broken(name, PYTHON)


def class_names(files: Iterable[Source]) -> Iterator[str]:
    """Every public class name that is defined in more than one file."""
    defined: dict[str, list[str]] = {}
    for file in files:
        for node in file.nodes(ast.ClassDef):
            assert isinstance(node, ast.ClassDef)
            if not node.name.startswith("_"):
                defined.setdefault(node.name, []).append(file.path)
    for class_name, paths in sorted(defined.items()):
        if len(paths) > 1 and class_name not in REPEATED_CLASSES:
            yield f"{class_name} is defined in {' and '.join(paths)}; one name, one class"


def test_a_public_class_name_is_used_once() -> None:
    assert not list(class_names(SRC))


def topic(file: Source) -> Iterator[str]:
    parts = file.path.removeprefix("src/phalanx/").removesuffix(".py").split("/")
    words = {word for part in parts for word in part.strip("_").split("_")}
    for word in sorted(words - TOPICS):
        yield (
            f"the word {word} is not in TOPICS; name files and folders after what a newcomer would"
            " look for, in the words of the field, and add the word if it is one"
        )


def test_files_and_folders_are_named_in_the_words_of_the_field() -> None:
    assert not broken(topic, SRC)


def function_size(file: Source) -> Iterator[str]:
    for node in file.nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        lines = (node.end_lineno or 0) - node.lineno + 1
        if lines > FUNCTION_LINES:
            yield f"{node.name} has {lines} lines; give the steps above {FUNCTION_LINES} names"


def test_functions_fit_on_one_screen() -> None:
    assert not broken(function_size, SRC)


def docstring(file: Source) -> Iterator[str]:
    text = ast.get_docstring(file.tree)
    if not text:
        yield "has no docstring; open it with what it owns and what it refuses"
    elif len(text.splitlines()) > DOCSTRING_LINES:
        yield f"opens with more than {DOCSTRING_LINES} lines; move the rest to where it applies"


def test_every_module_opens_with_what_it_owns() -> None:
    assert not broken(docstring, SRC)


# Honesty


def bare_except(file: Source) -> Iterator[str]:
    for node in file.nodes(ast.ExceptHandler):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"line {node.lineno} catches everything; name what you can deal with"


def test_no_except_is_bare() -> None:
    assert not broken(bare_except, PYTHON)


def printing(file: Source) -> Iterator[str]:
    for node in file.nodes(ast.Call):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
            yield f"line {node.lineno} prints; return it, or log it in the shell"


def test_the_library_does_not_print() -> None:
    assert not broken(printing, [file for file in SRC if file.package not in PRINTERS])


def unfinished(file: Source) -> Iterator[str]:
    for number, line in enumerate(file.text.splitlines(), 1):
        if UNFINISHED.search(line):
            yield f"line {number} leaves something to do; do it, or describe the limit in the docs"


def test_nothing_is_left_to_do() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *SQL, ROOT / "Makefile"]
    others = [Source(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in pages]
    assert not broken(unfinished, [*PYTHON, *others])


SQL = sorted((ROOT / "src").rglob("*.sql"))


# Tests


def sleeping(file: Source) -> Iterator[str]:
    for node in file.nodes(ast.Call):
        if not isinstance(node, ast.Call) or ast.unparse(node.func).split(".")[-1] != "sleep":
            continue
        # Sleeping for nothing only lets the event loop take its next turn.
        if [ast.unparse(argument) for argument in node.args] != ["0"]:
            yield f"line {node.lineno} sleeps; wait for what you need, or move a clock of your own"


def test_tests_do_not_sleep() -> None:
    assert not broken(sleeping, [file for file in TESTS if file.path not in SLEEPERS])


def skipping(file: Source) -> Iterator[str]:
    reasoned: set[int] = set()
    for node in file.nodes(ast.Call):
        assert isinstance(node, ast.Call)
        said = [*node.args[1 if _skip_of(node.func) == "skipif" else 0 :]]
        said += [keyword.value for keyword in node.keywords if keyword.arg == "reason"]
        if any(isinstance(value, ast.JoinedStr) or _is_text(value) for value in said):
            reasoned.add(id(node.func))
    for node in file.nodes(ast.Attribute):
        if isinstance(node, ast.Attribute) and _skip_of(node) and id(node) not in reasoned:
            yield f"line {node.lineno} leaves a test out without a reason; give one, in words"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(node.value)


def _skip_of(node: ast.AST) -> str | None:
    found = re.fullmatch(r"pytest\.(?:mark\.)?(skip|skipif|xfail)", ast.unparse(node))
    return found[1] if found else None


def test_no_test_is_left_out_without_a_reason() -> None:
    assert not broken(skipping, TESTS)


# The checkers themselves

CORE = "src/phalanx/core/a.py"
LONG = "def f():\n" + "    x = 1\n" * FUNCTION_LINES


@pytest.mark.parametrize(
    ("checker", "path", "text", "found"),
    [
        (direction, CORE, "from phalanx.store.protocol import Store", "nothing else of Phalanx"),
        (direction, CORE, "from phalanx import engine", "imports phalanx.engine"),
        (direction, CORE, "from ..plan import cycle", "imports phalanx.plan.cycle"),
        (direction, CORE, "def f():\n    import phalanx.api", "line 2"),
        (direction, "src/phalanx/plan/a.py", "import phalanx.engine", "plan may import core"),
        (direction, "src/phalanx/store/a.py", "import phalanx.plan", "store may import core"),
        (direction, "src/phalanx/manifest/a.py", "import phalanx.store", "manifest may import"),
        (direction, "src/phalanx/wire/a.py", "import phalanx.engine", "wire may import core"),
        (direction, "src/phalanx/agent/a.py", "import phalanx.api.jobs", "agent may import"),
        (direction, "src/phalanx/client/a.py", "import phalanx.engine", "client may import"),
        (direction, "src/phalanx/cli/a.py", "import phalanx.engine.turn", "cli may import"),
        (direction, "src/phalanx/novel/a.py", "", "has no row"),
        *(
            (pure_imports, CORE, f"import {module}", f"imports {module}")
            for module in (
                *("asyncio", "time", "random", "uuid", "os", "io", "logging", "socket", "secrets"),
                *("subprocess", "threading", "structlog", "sqlite3", "pathlib", "importlib"),
            )
        ),
        (pure_imports, "src/phalanx/plan/a.py", "from time import time", "plan has no I/O"),
        (pure_imports, CORE, "import numpy", "imports numpy"),
        (pure_calls, CORE, "open('x')", "calls open"),
        (pure_calls, CORE, "datetime.now(UTC)", "asks the clock"),
        (pure_calls, CORE, "datetime.datetime.utcnow()", "asks the clock"),
        (pure_calls, CORE, "date.today()", "asks the clock"),
        (pure_calls, CORE, "async def f(): ...", "awaits"),
        (name, "src/phalanx/core/utils.py", "", "utils says nothing"),
        (name, "tests/helpers/rows.py", "", "helpers says nothing"),
        (topic, "src/phalanx/engine/desk.py", "", "the word desk is not in TOPICS"),
        (topic, "src/phalanx/household/a.py", "", "the word household is not in TOPICS"),
        (function_size, CORE, LONG, f"f has {FUNCTION_LINES + 1} lines"),
        (function_size, CORE, f"async {LONG}", f"f has {FUNCTION_LINES + 1} lines"),
        (docstring, CORE, "x = 1", "has no docstring"),
        (docstring, CORE, '"""' + "a\n" * 7 + '"""', "more than 6 lines"),
        (bare_except, CORE, "try:\n    f()\nexcept:\n    pass", "line 3 catches everything"),
        (printing, CORE, "print('hello')", "line 1 prints"),
        (unfinished, CORE, "x = 1  # TO" + "DO: more", "line 1 leaves something"),
        (sleeping, "tests/a.py", "time.sleep(0.1)", "line 1 sleeps"),
        (sleeping, "tests/a.py", "async def f():\n    await asyncio.sleep(1)", "line 2 sleeps"),
        (sleeping, "tests/a.py", "from time import sleep\nsleep(2)", "line 2 sleeps"),
        (skipping, "tests/a.py", "@pytest.mark.skip\ndef f(): ...", "without a reason"),
        (skipping, "tests/a.py", "pytest.skip()", "without a reason"),
        (skipping, "tests/a.py", "pytest.mark.skipif('x')", "without a reason"),
        (skipping, "tests/a.py", "pytest.mark.xfail(reason='')", "without a reason"),
    ],
)
def test_every_checker_finds_what_it_looks_for(
    checker: Checker, path: str, text: str, found: str
) -> None:
    assert found in broken(checker, [Source(path, text)])


def test_a_class_name_that_is_used_twice_is_found() -> None:
    twice = [Source(f"src/phalanx/core/{name}.py", "class Claim: ...") for name in "ab"]
    [found] = class_names(twice)
    assert found.startswith("Claim is defined in src/phalanx/core/a.py and")
    assert not list(class_names([twice[0], Source(CORE, "class _Claim: ...")]))


@pytest.mark.parametrize(
    ("checker", "path", "text"),
    [
        (direction, CORE, "from phalanx.core.states import State\nfrom . import events"),
        (direction, "src/phalanx/plan/a.py", "from phalanx.core import events"),
        (direction, "src/phalanx/agent/a.py", "from phalanx.wire.sync import Sync"),
        (pure_imports, "src/phalanx/plan/a.py", "import numpy"),
        (pure_calls, CORE, "datetime.fromtimestamp(tx.now, UTC)"),
        (function_size, CORE, LONG.removesuffix("    x = 1\n")),
        (sleeping, "tests/a.py", "async def f():\n    await asyncio.sleep(0)"),
        (skipping, "tests/a.py", "pytest.skip('memory has no schema')"),
        (skipping, "tests/a.py", "pytest.mark.skipif(x, reason='needs Linux')"),
        (skipping, "tests/a.py", "pytest.mark.xfail(reason=f'{x}')"),
    ],
)
def test_no_checker_finds_what_is_allowed(checker: Checker, path: str, text: str) -> None:
    assert not broken(checker, [Source(path, text)])


def test_the_demo_and_the_image_run_with_the_versions_that_are_tested() -> None:
    tested, installed = (
        set(re.findall(r"^\S+==\S+", (ROOT / "requirements" / file).read_text(), re.MULTILINE))
        for file in ("dev.lock", "image.lock")
    )
    assert installed - tested == set()
