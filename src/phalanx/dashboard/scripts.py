"""Scripts of the dashboard: each is one file that contains the modules it imports.

A browser takes several milliseconds for each file of a page, so forty modules would take longer
than the page itself. Each module becomes a function; its lines stay as they are, but for `import`
and `export`.
"""

import posixpath
import re
from collections.abc import Mapping

_IMPORT = re.compile(r'^import (\{ [\w, ]+ \}) from "([^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function|class|const) (\w+)", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)


def script(entry: str, modules: Mapping[str, str]) -> str:
    """A module by its path, such as `js/main.js`, after all modules that it needs."""
    parts: dict[str, str] = {}
    _add(entry, modules, parts)
    if len(parts) == 1:
        return modules[entry]
    return "\n".join(("const modules = {};", *parts.values()))


def _add(path: str, modules: Mapping[str, str], parts: dict[str, str]) -> None:
    if path in parts:
        return
    code = modules[path]
    for match in _IMPORT.finditer(code):
        _add(_imported(path, match[2]), modules, parts)
    parts[path] = _function(path, code)


def _imported(path: str, name: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), name))


def _function(path: str, code: str) -> str:
    code = _IMPORT.sub(
        lambda match: f'const {match[1]} = modules["{_imported(path, match[2])}"];', code
    )
    exported = ", ".join(match[2] for match in _EXPORT.finditer(code))
    code = _EXPORT.sub(r"\1 \2", code)
    if other := _OTHER.search(code):
        raise ValueError(f"bug: {path} has an import or export of another form: {other[0]}")
    return f'modules["{path}"] = (() => {{\n{code}return {{ {exported} }};\n}})();'
