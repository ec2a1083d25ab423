"""What can go wrong when a server is asked: nobody answered, or the answer was no."""

from phalanx.wire.errors import ErrorDetail, ErrorInfo


class PhalanxError(Exception):
    """Whatever the client raises."""


class UnreachableError(PhalanxError):
    """No server answered, or none that leads."""


class RefusedError(PhalanxError):
    """A server answered, and refused."""

    def __init__(self, status: int, info: ErrorInfo, request_id: str = "") -> None:
        self.status = status
        self.info = info
        self.request_id = request_id  #: by which the server's log knows the request
        super().__init__(info.message)

    @property
    def code(self) -> str:
        return self.info.code

    @property
    def details(self) -> tuple[ErrorDetail, ...]:
        """Everything that is wrong with what was sent, by its path."""
        return self.info.details


class InvalidError(RefusedError):
    """What was sent is wrong; `details` says where."""


class NotFoundError(RefusedError):
    """There is no such thing, or it is not for this caller to see."""


class ConflictError(RefusedError):
    """It cannot be done in the state that things are in."""


class DeniedError(RefusedError):
    """There is no token, or it does not reach this far."""


class UnavailableError(RefusedError):
    """The server cannot answer at the moment; it may later."""


_BY_STATUS: dict[int, type[RefusedError]] = {
    400: InvalidError,
    401: DeniedError,
    403: DeniedError,
    404: NotFoundError,
    409: ConflictError,
    413: InvalidError,
    415: InvalidError,
    503: UnavailableError,
}


def refused(status: int, info: ErrorInfo, request_id: str = "") -> RefusedError:
    return _BY_STATUS.get(status, RefusedError)(status, info, request_id)
