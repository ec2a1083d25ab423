"""Encryption of secrets with AES-GCM, under a key in a file that is not in the store.

A key file has one key in each line. The first one encrypts, and all of them decrypt, so a new key
is added in front of the old one.
"""

import base64
import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from phalanx.host.file_replacement import write_private

_KEY_BYTES = 32
_NONCE_BYTES = 12
_READABLE_BY_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class KeyFileError(Exception):
    """The key file cannot be used; the message says why and what to do."""


class CannotDecrypt(Exception):  # noqa: N818
    """None of the keys decrypts a value; the message says why."""


class SealedValue(msgspec.Struct, frozen=True):
    key_id: str  #: the beginning of the SHA-256 of the key
    data: bytes  #: nonce and ciphertext


class KeyRing:
    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {_key_id(key): AESGCM(key) for key in keys}
        self._first = _key_id(keys[0])

    def encrypt(self, plain: bytes, context: str) -> SealedValue:
        """The value sealed with the first key. Only the same context decrypts it."""
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._keys[self._first].encrypt(nonce, plain, context.encode())
        return SealedValue(self._first, nonce + sealed)

    def decrypt(self, sealed: SealedValue, context: str) -> bytes:
        """Raises CannotDecrypt."""
        key = self._keys.get(sealed.key_id)
        if key is None:
            raise CannotDecrypt(
                f"it is encrypted with the key {sealed.key_id}, which is not in the key file"
            )
        try:
            nonce, data = sealed.data[:_NONCE_BYTES], sealed.data[_NONCE_BYTES:]
            return key.decrypt(nonce, data, context.encode())
        except InvalidTag:
            raise CannotDecrypt("the stored value was changed, or is of another secret") from None


def load_keys(path: Path) -> KeyRing:
    """The keys of a file. Raises KeyFileError."""
    create = f"create one with `phalanx secret new-key {path}`"
    try:
        mode = path.stat().st_mode
        lines = path.read_text("ascii").split()
    except FileNotFoundError:
        raise KeyFileError(f"{path}: does not exist; {create}") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise KeyFileError(f"{path}: cannot be read: {why}") from None
    if mode & _READABLE_BY_OTHERS:
        raise KeyFileError(f"{path}: is accessible to other users; run `chmod 600 {path}`")
    try:
        keys = [base64.b64decode(line, validate=True) for line in lines]
    except ValueError:
        keys = []
    if not keys or any(len(key) != _KEY_BYTES for key in keys):
        raise KeyFileError(f"{path}: is not a file of keys; {create}")
    return KeyRing(keys)


def add_key(path: Path) -> None:
    """Put a new key in front of those of the file, which is created if there is none.

    Raises OSError.
    """
    earlier = path.read_text("ascii") if path.exists() else ""
    new = base64.b64encode(AESGCM.generate_key(bit_length=8 * _KEY_BYTES)).decode()
    write_private(path, f"{new}\n{earlier}")


def _key_id(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:12]
