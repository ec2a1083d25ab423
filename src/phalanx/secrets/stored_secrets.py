"""The built-in provider: secrets in the store of the cluster, by namespace, encrypted."""

import asyncio
from collections.abc import Callable, Collection, Mapping

import msgspec

from phalanx.core.errors import Conflict, Invalid, Problem, Unknown
from phalanx.core.spec.secret_references import SecretKey
from phalanx.core.time_units import Micros
from phalanx.engine.gang_inputs import InputUnavailable
from phalanx.engine.object_registry import ObjectRegistry
from phalanx.host.clock import wall_clock
from phalanx.secrets.encryption import CannotDecrypt, KeyRing, SealedValue
from phalanx.store.protocol import AuditRecord, ClusterObject, ObjectKey

KIND = "secret"
#: Keys of one secret, and secrets of one namespace.
KEY_LIMIT = 100
SECRET_LIMIT = 1000
_NO_KEY = (
    "the server has no key to encrypt secrets with; create one with `phalanx secret new-key FILE`"
    " and set secret_key_file to that file"
)


class _Body(msgspec.Struct, frozen=True):
    """The stored form: the names of the keys, and their values encrypted together."""

    keys: tuple[str, ...]
    sealed: SealedValue


class ListedSecret(msgspec.Struct, frozen=True):
    """A secret without its values."""

    namespace: str
    name: str
    keys: tuple[str, ...]
    changed_at: Micros
    changed_by: str


class StoredSecrets:
    def __init__(
        self,
        registry: ObjectRegistry,
        keys: KeyRing | None,
        clock: Callable[[], Micros] = wall_clock,
    ) -> None:
        self._registry = registry
        self._keys = keys
        self._clock = clock
        self._changing = asyncio.Lock()

    def list(self) -> list[ListedSecret]:
        """All secrets, by namespace and name."""
        return [_listed(each) for each in self._registry.of_kind(KIND)]

    async def set(
        self,
        namespace: str,
        name: str,
        values: Mapping[str, str],
        by: str,
        audit: AuditRecord | None = None,
    ) -> ListedSecret:
        """Add keys to a secret or replace them; a new secret is created. Raises Conflict, and
        Invalid if there are too many."""
        async with self._changing:
            key = ObjectKey(KIND, namespace, name)
            if self._registry.get(key) is None:
                self._check_count(namespace)
            return await self._put(key, self._values(key) | dict(values), by, audit)

    async def remove(
        self,
        namespace: str,
        name: str,
        keys: Collection[str],
        by: str,
        audit: AuditRecord | None = None,
    ) -> None:
        """Remove keys of a secret, or the whole secret if none is named. Raises Unknown."""
        async with self._changing:
            key = ObjectKey(KIND, namespace, name)
            stored = self._registry.get(key)
            if stored is None:
                raise Unknown(f"there is no secret {name} in namespace {namespace}")
            missing = [each for each in keys if each not in _body(stored).keys]
            if missing:
                raise Unknown(f"secret {name} in namespace {namespace} has no key {missing[0]}")
            left = {} if not keys else self._values(key)
            for each in keys:
                del left[each]
            if left:
                await self._put(key, left, by, audit)
            else:
                await self._registry.change((), [key], audit)

    def find(self, namespace: str, wanted: SecretKey) -> str | None:
        """The value; None if there is none. Raises InputUnavailable."""
        key = ObjectKey(KIND, namespace, wanted.name)
        stored = self._registry.get(key)
        if stored is None or wanted.key not in _body(stored).keys:
            return None
        try:
            return self._values(key)[wanted.key]
        except Conflict as error:
            raise InputUnavailable(f"secret {namespace}/{wanted.name}: {error}") from None

    def has(self, namespace: str, wanted: SecretKey) -> bool:
        stored = self._registry.get(ObjectKey(KIND, namespace, wanted.name))
        return stored is not None and wanted.key in _body(stored).keys

    async def _put(
        self, key: ObjectKey, values: Mapping[str, str], by: str, audit: AuditRecord | None
    ) -> ListedSecret:
        if len(values) > KEY_LIMIT:
            raise Invalid([Problem("data", f"a secret has at most {KEY_LIMIT} keys")])
        sealed = self._ring.encrypt(msgspec.json.encode(values), _context(key))
        body = msgspec.json.encode(_Body(tuple(sorted(values)), sealed)).decode()
        changed = ClusterObject(*key, body, self._clock(), by)
        await self._registry.change([changed], (), audit)
        return _listed(changed)

    def _values(self, key: ObjectKey) -> dict[str, str]:
        """The values of a secret; empty if there is none. Raises Conflict."""
        stored = self._registry.get(key)
        if stored is None:
            return {}
        try:
            plain = self._ring.decrypt(_body(stored).sealed, _context(key))
        except CannotDecrypt as error:
            raise Conflict(f"the secret cannot be decrypted: {error}") from None
        return msgspec.json.decode(plain, type=dict[str, str])

    @property
    def _ring(self) -> KeyRing:
        if self._keys is None:
            raise Conflict(_NO_KEY)
        return self._keys

    def _check_count(self, namespace: str) -> None:
        count = sum(each.namespace == namespace for each in self._registry.of_kind(KIND))
        if count >= SECRET_LIMIT:
            problem = f"namespace {namespace} has {count} secrets, the most it may have"
            raise Invalid([Problem("", f"{problem}; remove one first")])


def _listed(stored: ClusterObject) -> ListedSecret:
    return ListedSecret(
        stored.namespace, stored.name, _body(stored).keys, stored.changed_at, stored.changed_by
    )


def _body(stored: ClusterObject) -> _Body:
    return msgspec.json.decode(stored.body, type=_Body)


def _context(key: ObjectKey) -> str:
    return f"{key.kind}/{key.namespace}/{key.name}"
