"""A dictionary whose forks share the entries that neither side has changed."""

from collections.abc import ItemsView, Iterator, MutableMapping, ValuesView
from typing import TypeVar, overload
from zlib import crc32

D = TypeVar("D")
V = TypeVar("V")

#: The entries are spread over this many parts.
_PARTS = 256
_NO_DEFAULT = object()


class ForkableDict(MutableMapping[str, V]):
    """A dictionary by name; forking it takes a microsecond, however many entries it has.

    Both sides of a fork share all parts and copy a part before they first write to it. Iteration
    goes part by part, in an order that is the same in every process.
    """

    __slots__ = ("_owned", "_parts", "_shares_list", "_size")

    def __init__(self) -> None:
        self._parts: list[dict[str, V]] = [{}] * _PARTS
        self._shares_list = False  #: with a fork: the list itself is copied before a change
        self._owned = bytearray(_PARTS)  #: 1 where no fork shares the part
        self._size = 0

    def fork(self) -> "ForkableDict[V]":
        """An equal dictionary. Later changes of either one do not show in the other."""
        fork: ForkableDict[V] = ForkableDict.__new__(ForkableDict)
        fork._parts = self._parts
        fork._shares_list = self._shares_list = True
        fork._owned = bytearray(_PARTS)
        fork._size = self._size
        self._owned = bytearray(_PARTS)
        return fork

    def __getitem__(self, key: str) -> V:
        return self._parts[crc32(key.encode()) % _PARTS][key]

    @overload
    def get(self, key: str, /) -> V | None: ...

    @overload
    def get(self, key: str, /, default: V | D) -> V | D: ...

    def get(self, key: str, /, default: object = None) -> object:
        return self._parts[crc32(key.encode()) % _PARTS].get(key, default)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._parts[crc32(key.encode()) % _PARTS]

    def __setitem__(self, key: str, value: V) -> None:
        part = self._writable(key)
        self._size += key not in part
        part[key] = value

    def __delitem__(self, key: str) -> None:
        del self._writable(key)[key]
        self._size -= 1

    @overload
    def pop(self, key: str, /) -> V: ...

    @overload
    def pop(self, key: str, /, default: V | D) -> V | D: ...

    def pop(self, key: str, /, default: object = _NO_DEFAULT) -> object:
        number = crc32(key.encode()) % _PARTS
        if key not in self._parts[number]:
            if default is _NO_DEFAULT:
                raise KeyError(key)
            return default
        self._size -= 1
        return self._writable_part(number).pop(key)

    def _writable(self, key: str) -> dict[str, V]:
        return self._writable_part(crc32(key.encode()) % _PARTS)

    def _writable_part(self, number: int) -> dict[str, V]:
        if not self._owned[number]:
            if self._shares_list:
                self._parts, self._shares_list = self._parts.copy(), False
            self._owned[number] = 1
            self._parts[number] = self._parts[number].copy()
        return self._parts[number]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[str]:
        for part in self.parts():
            yield from part

    def values(self) -> ValuesView[V]:
        return _Values(self)

    def items(self) -> ItemsView[str, V]:
        return _Items(self)

    def parts(self) -> Iterator[dict[str, V]]:
        """The parts that have entries; not to be changed."""
        return filter(None, self._parts if self._size else ())


class _Values(ValuesView[V]):
    _mapping: ForkableDict[V]

    def __iter__(self) -> Iterator[V]:
        for part in self._mapping.parts():
            yield from part.values()


class _Items(ItemsView[str, V]):
    _mapping: ForkableDict[V]

    def __iter__(self) -> Iterator[tuple[str, V]]:
        for part in self._mapping.parts():
            yield from part.items()
