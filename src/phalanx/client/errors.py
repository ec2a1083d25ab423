"""The errors that a client raises: no server answered, or a server refused the request."""

from phalanx.wire.errors import ErrorDetail, ErrorInfo


class PhalanxError(Exception):
    """The base of every error that the client raises."""


class UnreachableError(PhalanxError):
    """No server answered, or none of them leads."""


class UnknownOutcomeError(UnreachableError):
    """The change may have been made: no server has said whether it was. Repeating it with the same
    `key` is safe."""

    def __init__(self, message: str, key: str) -> None:
        self.key = key  #: the idempotency key of the request
        super().__init__(message)


class UntrustedError(UnreachableError):
    """The server's certificate authority does not have the expected fingerprint."""


class RefusedError(PhalanxError):
    """A server answered and refused the request."""

    def __init__(self, status: int, info: ErrorInfo, request_id: str = "") -> None:
        self.status = status
        self.info = info
        self.request_id = request_id  #: the id of the request in the server's log
        super().__init__(info.message)

    @property
    def code(self) -> str:
        return self.info.code

    @property
    def details(self) -> tuple[ErrorDetail, ...]:
        """Every problem in the request, each with its path."""
        return self.info.details


class InvalidError(RefusedError):
    """The request is invalid; `details` names every problem."""


class NotFoundError(RefusedError):
    """The object does not exist, or the token does not permit to see it."""


class ConflictError(RefusedError):
    """The action is not possible in the object's current state."""


class TooManyRequestsError(RefusedError):
    """The caller or the namespace sends more than it may; the client waited as long as it could."""


class DeniedError(RefusedError):
    """The token is missing, unknown, or does not permit this."""


_BY_STATUS: dict[int, type[RefusedError]] = {
    400: InvalidError,
    401: DeniedError,
    403: DeniedError,
    404: NotFoundError,
    409: ConflictError,
    413: InvalidError,
    415: InvalidError,
    429: TooManyRequestsError,
}


def refused(status: int, info: ErrorInfo, request_id: str = "") -> RefusedError:
    """The error for a response with this status."""
    return _BY_STATUS.get(status, RefusedError)(status, info, request_id)
