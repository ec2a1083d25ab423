"""Plain data from the events of a YAML parser, built without recursion.

Nesting and aliases are limited while they are read, so that no input exhausts the stack or the
memory. Keys are strings and unique; tags and merge keys are refused.
"""

from dataclasses import dataclass
from typing import Never, Protocol

from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)

from phalanx.core.spec.fields import FieldPath, shown
from phalanx.manifest.yaml_scalars import resolved

DEPTH_LIMIT = 64
#: Documents of one input, empty ones included.
DOCUMENT_LIMIT = 500
#: Nodes of all documents together; an alias counts as many nodes as its anchor has.
NODE_LIMIT = 100_000

_STRING_TAGS = ("!", "tag:yaml.org,2002:str")


class Mark(Protocol):
    """A point in the text, counted from 0. Each of the two YAML parsers has its own type."""

    @property
    def line(self) -> int: ...
    @property
    def column(self) -> int: ...


@dataclass(slots=True)
class _Node:
    value: object
    size: int = 1  #: how many nodes it has, itself included
    height: int = 0  #: how many collections are nested in it, itself included


@dataclass(slots=True)
class _Open:
    """A collection whose end has not been read yet."""

    value: dict[str, object] | list[object]
    path: FieldPath
    anchor: str | None
    size: int = 1
    height: int = 1
    key: str | None = None  #: the key whose value comes next


class YamlTree:
    """The documents of a stream, built event by event, without the empty ones."""

    def __init__(self) -> None:
        self.documents: list[object] = []
        self._number = 1  #: of the document being read
        self._begun = 0  #: documents so far, empty ones included
        self._root = FieldPath()
        self._open: list[_Open] = []
        self._nodes = 0
        #: The node of each anchor of the document; None while the node is being read.
        self._anchors: dict[str, _Node | None] = {}

    def take(self, event: Event) -> None:
        if isinstance(event, DocumentStartEvent):
            self._begin_document(event)
        elif isinstance(event, NodeEvent) and self._wants_key():
            self._take_key(event)
        elif isinstance(event, ScalarEvent):
            self._finish(_Node(self._scalar(event)), event.anchor, event.start_mark)
        elif isinstance(event, CollectionStartEvent):
            self._begin(event)
        elif isinstance(event, CollectionEndEvent):
            done = self._open.pop()
            node = _Node(done.value, done.size, done.height)
            self._finish(node, done.anchor, event.start_mark)
        elif isinstance(event, AliasEvent):
            self._finish(self._alias(event), None, event.start_mark)

    def _begin_document(self, event: DocumentStartEvent) -> None:
        self._begun += 1
        if self._begun > DOCUMENT_LIMIT:
            location = self.location(event.start_mark)
            self.stop(f"{location}: more than {DOCUMENT_LIMIT} documents; split the file")
        self._number = len(self.documents) + 1
        self._anchors = {}

    def finished(self) -> list[object]:
        """The documents, once all events have been taken. Raises Invalid."""
        self._root.raise_problems()
        return self.documents

    def location(self, mark: Mark | None) -> str:
        document = f"document {self._number}"
        return f"{document}, line {mark.line + 1}, column {mark.column + 1}" if mark else document

    def stop(self, message: str, path: FieldPath | None = None) -> Never:
        """Raise `Invalid` at once, because the rest of the stream cannot be read."""
        (path or self._root).problem(message)
        self._root.raise_problems()
        raise AssertionError("bug: a problem was added and not raised")

    def _next_path(self) -> FieldPath:
        """The path of the next node."""
        if not self._open:
            return self._root
        parent = self._open[-1]
        return parent.path.at(len(parent.value) if parent.key is None else parent.key)

    def _wants_key(self) -> bool:
        parent = self._open[-1] if self._open else None
        return parent is not None and isinstance(parent.value, dict) and parent.key is None

    def _take_key(self, event: NodeEvent) -> None:
        parent = self._open[-1]
        location = self.location(event.start_mark)
        if not isinstance(event, ScalarEvent):
            self.stop(f"{location}: a list, a mapping or an alias cannot be a key; write a string")
        key: str = event.value
        path = parent.path.at(key)
        value = self._scalar(event)
        if not isinstance(value, str):
            path.problem(
                f"is the key {shown(value)}, not a string ({location}); write it in quotes"
            )
        elif key == "<<" and event.implicit[0]:
            path.problem(
                f"is a merge key, which is not supported ({location}); write out the fields"
            )
        elif key in parent.value:
            path.problem(f"occurs twice ({location}); remove one of them")
        parent.key = key
        if event.anchor is not None:
            self._anchors[event.anchor] = _Node(value)
        self._count(1, event.start_mark)

    def _scalar(self, event: ScalarEvent) -> object:
        if event.tag in _STRING_TAGS:
            return event.value
        self._check_tag(event.tag, event.start_mark)
        is_unquoted = event.implicit[0]
        return resolved(event.value) if is_unquoted else event.value

    def _check_tag(self, tag: str | None, mark: Mark | None) -> None:
        if tag is not None and tag not in _STRING_TAGS:
            message = f"has the tag {shown(tag)}, which is not supported; remove it"
            if self._open:
                self._next_path().problem(f"{message} ({self.location(mark)})")
            else:
                self._root.problem(f"{self.location(mark)}: the document {message}")

    def _begin(self, event: CollectionStartEvent) -> None:
        self._check_tag(event.tag, event.start_mark)
        path = self._next_path()
        if len(self._open) == DEPTH_LIMIT:
            self._too_deep(event.start_mark)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        value: dict[str, object] | list[object]
        value = {} if isinstance(event, MappingStartEvent) else []
        self._open.append(_Open(value, path, event.anchor))

    def _alias(self, event: AliasEvent) -> _Node:
        name = event.anchor
        location = self.location(event.start_mark)
        if name not in self._anchors:
            self.stop(
                f"{location}: the alias {shown(name)} has no anchor before it; add the anchor"
            )
        node = self._anchors[name]
        if node is None:
            self.stop(
                f"{location}: the alias {shown(name)} is inside its own anchor; write the value"
            )
        if len(self._open) + node.height > DEPTH_LIMIT:
            self._too_deep(event.start_mark)
        self._count(node.size - 1, event.start_mark)
        return node

    def _too_deep(self, mark: Mark | None) -> Never:
        self.stop(f"{self.location(mark)}: more than {DEPTH_LIMIT} levels of nesting; flatten it")

    def _count(self, size: int, mark: Mark | None) -> None:
        self._nodes += size
        if self._nodes > NODE_LIMIT:
            location = self.location(mark)
            self.stop(
                f"{location}: more than {NODE_LIMIT} values, with aliases written out; split the"
                " file"
            )

    def _finish(self, node: _Node, anchor: str | None, mark: Mark | None) -> None:
        """Add a complete node to its parent, or to the documents."""
        if anchor is not None:
            self._anchors[anchor] = node
        if not self._open:
            if node.value is not None:
                self.documents.append(node.value)
            return
        parent = self._open[-1]
        parent.size += node.size
        parent.height = max(parent.height, node.height + 1)
        if isinstance(parent.value, list):
            parent.value.append(node.value)
        elif parent.key is not None:
            parent.value[parent.key] = node.value
            parent.key = None
        self._count(1, mark)
