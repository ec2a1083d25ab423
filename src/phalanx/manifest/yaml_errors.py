"""Syntax errors of YAML in plain words.

The two parsers word the same error differently, and neither says how to correct it. Here an error
is recognised by words that both of them use.
"""

from phalanx.core.spec.fields import shown

#: Words of a parser, all in one message → what is wrong and how to correct it.
_EXPLANATIONS = (
    (
        ("mapping values are not allowed",),
        "a ':' is not allowed here; put the value in quotes, or begin a new line with the key",
    ),
    (
        ("sequence entries are not allowed",),
        "a '-' is not allowed here; begin the list on a new line, or put the value in quotes",
    ),
    (
        ("quoted scalar", "end of stream"),
        "the quote that begins here is not closed; add the closing quote",
    ),
    (
        ("escape",),
        r"the quoted string has an unknown escape sequence; write \\ for a backslash",
    ),
    (("',' or '}'",), "a '{' is not closed; add '}', or ',' before the next entry"),
    (("',' or ']'",), "a '[' is not closed; add ']', or ',' before the next entry"),
    (("flow node",), "a value is missing, or a bracket is not closed; add it"),
    (("alias",), "a '*' begins the name of an alias; write the name, or put the value in quotes"),
    (("anchor",), "a '&' begins the name of an anchor; write the name, or put the value in quotes"),
    (("tag",), "a '!' begins a tag, and tags are not supported; put the value in quotes"),
    (("block scalar",), "text cannot follow '|' or '>'; begin the text on the next line"),
    (("block",), "the indentation does not match the lines before; align this line with them"),
    (
        ("document start",),
        "the document ends before this; remove the text, or begin a new document with ---",
    ),
    (("directive",), "a '%' at the beginning of a line is a directive; remove the line"),
    (("incompatible",), "this version of YAML is not supported; remove the %YAML line"),
)


def explanation(context: str | None, problem: str | None, character: str) -> str:
    """What is wrong and how to correct it, from the words of a parser and the character there."""
    words = f"{context or ''} {problem or ''}"
    if "cannot start any token" in words or "tab character" in words:
        if character == "\t":
            return "a tab cannot indent a line; use spaces"
        return f"a value cannot begin with {shown(character)}; put the value in quotes"
    for wanted, text in _EXPLANATIONS:
        if all(word in words for word in wanted):
            return text
    return "this is not valid YAML; correct the syntax"
