"""`phalanx policy`: list, apply, check and test the policies of a cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli import formatting
from phalanx.cli.connection import with_client
from phalanx.cli.exits import Status
from phalanx.cli.help_pages import HelpCommand
from phalanx.cli.output import Json, Narrow, note, print_json, print_trimmed, table_of
from phalanx.cli.settings import refuse
from phalanx.cli.visible_text import say

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.policies import PoliciesView, PolicyTestResult

app = typer.Typer(help="List, apply, check and test policies.", no_args_is_help=True)

Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE", help="Files of policies: Cedar, or trust policies in YAML."),
]
NoPolicies = Annotated[
    bool, typer.Option("--none", help="Remove all policies: only the built-in rules hold.")
]
OptionalFiles = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILE", help="Files of policies: Cedar, or trust policies in YAML."),
]
TestFile = Annotated[
    Path, typer.Argument(metavar="TESTS", help="File with requests and expected answers, in YAML.")
]
NewFile = Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")]
Tested = Annotated[
    list[Path] | None,
    typer.Option(
        "--policies",
        metavar="FILE",
        help="File of policies to test; repeat for more. [default: the policies of the cluster]",
    ),
]


@app.command("list", cls=HelpCommand)
@with_client
def list_policies(client: "Client", *, as_json: Json = False) -> None:
    """List the policies of the cluster."""
    view = client.policies()
    if as_json:
        print_json(view)
    elif not view.policies:
        note("no policies: the built-in rules hold (namespaces of tokens and of queues)")
    else:
        _print(view)


@app.command("apply", cls=HelpCommand)
@with_client
def apply(
    client: "Client",
    *,
    files: OptionalFiles = None,
    none: NoPolicies = False,
    as_json: Json = False,
) -> None:
    """Replace all policies of the cluster by those of the files.

    phalanx policy apply base.cedar team-ml.cedar
    """
    if bool(files) == none:
        refuse("name files to apply, or --none to remove all policies")
    view = client.apply_policies(_read(files or []))
    if as_json:
        print_json(view)
    elif none:
        say("removed all policies: the built-in rules hold")
    else:
        count = formatting.plural(len(files or []), "file")
        say(f"applied {len(view.policies)} policies of {count}")


@app.command("check", cls=HelpCommand)
@with_client
def check(client: "Client", *, files: Files, as_json: Json = False) -> None:
    """Check files of policies against the schema, without applying them."""
    view = client.check_policies(_read(files))
    if as_json:
        print_json(view)
    else:
        _print(view)


@app.command("test", cls=HelpCommand)
@with_client
def run_tests(
    client: "Client", *, tests: TestFile, policies: Tested = None, as_json: Json = False
) -> None:
    """Compare the answers of policies with those that a file expects."""
    import yaml  # noqa: PLC0415

    try:
        document = yaml.safe_load(tests.read_text("utf-8"))
    except OSError as error:
        refuse(f"{tests}: cannot be read: {error.strerror}")
    except (yaml.YAMLError, UnicodeDecodeError):
        refuse(f"{tests}: is not YAML")
    listed = document.get("tests") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        refuse(f"{tests}: has no list of tests; write tests: [...]")
    reply = client.test_policies(listed, None if not policies else _read(policies))
    if as_json:
        print_json(reply)
    else:
        rows = [
            [
                "pass" if each.passed else "FAIL",
                each.name,
                each.answer,
                ", ".join(each.policies) or "no policy",
            ]
            for each in reply.results
        ]
        headings = ["RESULT", "TEST", "ANSWER", "DECIDED BY"]
        print_trimmed(table_of(headings, rows, Narrow(cut=("TEST", "DECIDED BY"))))
        for each in reply.results:
            if not each.passed:
                say(_failure(each))
    if reply.failed:
        raise typer.Exit(Status.UNSUCCESSFUL)


@app.command("init", cls=HelpCommand)
def init(*, file: NewFile) -> None:
    """Write policies that equal the built-in rules, to start from."""
    from phalanx.policy.schema import STARTER  # noqa: PLC0415

    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(STARTER)
    except FileExistsError:
        refuse(f"{file}: exists already; choose another name")
    except OSError as error:
        refuse(f"{file}: cannot be written: {error.strerror}")
    say(f"wrote {file}; apply it with `phalanx policy apply {file}`")


def _failure(result: "PolicyTestResult") -> str:
    """Why a test has failed, in a sentence."""
    by = f" by policy {result.policy}" if result.policy else ""
    decided = result.why or f"permitted by {', '.join(result.policies)}"
    expected = f"expected {result.expected}{by}"
    return f"{result.name}: {expected}, the answer is {result.answer}: {decided}"


def _read(files: list[Path]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for file in files:
        if file.name in texts:
            refuse(f"{file}: another file has the same name; rename one of them")
        try:
            texts[file.name] = file.read_text("utf-8")
        except OSError as error:
            refuse(f"{file}: cannot be read: {error.strerror}")
        except UnicodeDecodeError:
            refuse(f"{file}: is not UTF-8 text")
    return texts


def _print(view: "PoliciesView") -> None:
    rows = [[policy.id, policy.effect, policy.file] for policy in view.policies]
    print_trimmed(table_of(["POLICY", "EFFECT", "FILE"], rows, Narrow(cut=("POLICY", "FILE"))))
