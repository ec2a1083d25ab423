"""Placeholders in the commands and variables of an array, such as `{index}` and `{lr}`.

Any other text in braces stays as it is, and so does `${index}`, which a shell expands. A text that
is almost a placeholder is refused. `{{index}}` is replaced by the text `{index}`.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from itertools import chain

from phalanx.core.spec.references import REFERENCE, literal
from phalanx.core.spec.secret_references import SECRET_REFERENCE, without_secrets

_BRACES = re.compile(r"(?<!\$)(?:\{\{(?P<escaped>[^{}\n]{1,80})\}\}|\{(?P<name>[^{}\n]{1,80})\})")
#: How similar a name is that is taken for a mistake.
_SIMILAR = 0.75


def filled(template: str, values: Mapping[str, str]) -> str:
    """The text with every placeholder replaced by its value."""

    def one(match: re.Match[str]) -> str:
        escaped, name = match["escaped"], match["name"]
        if escaped is not None:
            return match[0] if _meant(escaped, values) is None else f"{{{escaped}}}"
        return values.get(name, match[0])

    return _BRACES.sub(one, template) if "{" in template else template


def filled_variable(template: str, values: Mapping[str, str]) -> str:
    """The value of a variable with every placeholder replaced.

    References to secrets and to tasks stay as they are, and no value adds another one: the secrets
    of a job are those that it was admitted with.
    """
    if "{" not in template:
        return template
    secrets = (m for m in SECRET_REFERENCE.finditer(template) if m["malformed"] is None)
    matches = chain(REFERENCE.finditer(template), secrets)
    text, at = "", 0
    for match in sorted(matches, key=re.Match.start):
        text += _literal(template[at : match.start()], values) + match[0]
        at = match.end()
    return text + _literal(template[at:], values)


def _literal(template: str, values: Mapping[str, str]) -> str:
    return without_secrets(literal(filled(template, values)))


def near_misses(template: str, names: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The texts in braces that are almost a placeholder, each with the one that is meant."""
    for match in _BRACES.finditer(template) if "{" in template else ():
        name = match["name"]
        if name is None or name in names:
            continue
        meant = _meant(name, names)
        if meant is not None:
            yield match[0], meant


def _meant(name: str, names: Mapping[str, object]) -> str | None:
    """The placeholder that a text in braces is, or was meant to be."""
    if name in names:
        return name
    bare = re.split(r"[:!]", name, maxsplit=1)[0].strip().casefold()
    by_case = {each.casefold(): each for each in names}
    if bare in by_case:
        return by_case[bare]
    if not bare.isidentifier():
        return None
    near = difflib.get_close_matches(bare, by_case, n=1, cutoff=_SIMILAR)
    return by_case[near[0]] if near else None
