"""Sentences for people. Text from elsewhere cannot control the terminal that it is printed on."""

import os
import re
import sys
import textwrap

import typer

#: Control characters, line separators, and characters that change the direction of the text.
HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
#: The width of a terminal that has not said its size.
_NO_SIZE = 80
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def visible(text: str) -> str:
    r"""The text with control characters written as escapes, such as `\x1b` and `\n`."""
    return HIDDEN.sub(lambda found: _escape(found[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def say(sentence: str, *, err: bool = False) -> None:
    """Print one line, on a narrow terminal several lines of whole words."""
    text = visible(sentence)
    stream = sys.stderr if err else sys.stdout
    if stream.isatty():
        text = "\n".join(
            whole_words(text, os.get_terminal_size(stream.fileno()).columns or _NO_SIZE)
        )
    if err:
        # `typer.echo` would write into a display that is being drawn on the terminal.
        stream.write(text + "\n")
    else:
        typer.echo(text)


def whole_words(text: str, width: int, indent: str = "") -> list[str]:
    """The text in lines of whole words. Words that are too long, such as paths, are not broken."""
    return textwrap.wrap(
        text,
        max(width, 1),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [text]
