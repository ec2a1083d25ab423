"""The credential of a worker, in a file that only its user can read.

The file is replaced as a whole and flushed to disk before the credential in it is used.
"""

from pathlib import Path

import msgspec

from phalanx.host.file_replacement import replace_file


class WorkerCredential(msgspec.Struct, frozen=True, omit_defaults=True):
    worker: str
    secret: str
    is_joined: bool = False  #: the server has answered that it knows the secret
    next_secret: str = ""  #: sent to the server, perhaps; used once the server has answered
    renew_at: float = 0.0  #: seconds since 1970


class CredentialError(Exception):
    """The file cannot be used; the message says why and what to do."""


class CredentialFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, worker: str) -> WorkerCredential | None:
        """The credential of this worker; None if there is no file. Raises CredentialError."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CredentialError(f"cannot read {self.path}: {error.strerror}") from error
        try:
            credential = msgspec.json.decode(data, type=WorkerCredential)
        except msgspec.DecodeError as error:
            raise CredentialError(
                f"{self.path} is not a credential: {error}; remove it and start the worker with a"
                " join token"
            ) from None
        if credential.worker != worker:
            raise CredentialError(
                f"{self.path} is the credential of worker {credential.worker}, not of {worker};"
                " choose another --state-dir, or remove the file"
            )
        return credential

    def save(self, credential: WorkerCredential) -> None:
        """Replace the file, durably. Raises OSError, and the previous file is kept then."""
        replace_file(self.path, msgspec.json.encode(credential), durable=True)
