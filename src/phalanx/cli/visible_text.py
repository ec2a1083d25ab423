"""Sentences for people. Text from elsewhere cannot control the terminal that it is printed on."""

import re

import typer

#: Control characters, line separators, and characters that change the direction of the text.
HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def visible(text: str) -> str:
    r"""The text with control characters written as escapes, such as `\x1b` and `\n`."""
    return HIDDEN.sub(lambda found: _escape(found[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def say(sentence: str, *, err: bool = False) -> None:
    """Print one line."""
    typer.echo(visible(sentence), err=err)
