"""`phalanx help`: the help of a command, or a topic that belongs to no command."""

from importlib.resources import files
from typing import Annotated, Any

import typer

from phalanx.cli.exits import Status, end
from phalanx.cli.visible_text import say

_FOLDER = "help_topics"

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="TOPIC", help="A command, or a topic. [default: list the topics]"),
]


def topics() -> dict[str, str]:
    """The texts of all topics, by name."""
    folder = files("phalanx.cli").joinpath(_FOLDER)
    found = sorted(folder.iterdir(), key=lambda each: each.name)
    return {
        each.name.removesuffix(".txt"): each.read_text("utf-8")
        for each in found
        if each.name.endswith(".txt")
    }


def help_command(context: typer.Context, words: Words = None) -> None:
    """Explain a command or a topic.

    phalanx help submit
    phalanx help slurm
    """
    texts = topics()
    root: Any = context.find_root().command
    if not words:
        say("Topics:")
        for name, text in texts.items():
            say(f"  {name:<12}  {text.partition(chr(10))[0]}")
        say("`phalanx help COMMAND` explains a command; `phalanx --help` lists the commands.")
        return
    if len(words) == 1 and words[0] in texts:
        _say_lines(texts[words[0]].rstrip())
        return
    command, path = root, "phalanx"
    for word in words:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            known = ", ".join(texts)
            end(
                Status.USAGE,
                f"{' '.join(words)} is not a command or a topic; the topics are: {known}",
            )
        path += f" {word}"
    from phalanx.cli.help_pages import page  # noqa: PLC0415

    _say_lines(page(path, command, typer.Context(command, info_name=path)))


def _say_lines(text: str) -> None:
    for line in text.splitlines():
        say(line)
