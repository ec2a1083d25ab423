"""Answers of the API server that are not the requested object."""

import msgspec


class StatusCause(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    retry_after_seconds: float = 0.0
    causes: tuple[StatusCause, ...] = ()


class ApiStatus(msgspec.Struct, frozen=True):
    """The API server's `Status` object."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class ApiStatusError(Exception):
    """The API server refused a request. Nothing was changed, unless the code is 500 or above."""

    def __init__(self, status: ApiStatus, retry_after_s: float = 0.0) -> None:
        super().__init__(status.message or f"the API server answered {status.code}")
        self.code = status.code
        self.reason = status.reason
        self.message = status.message
        self.causes = status.details.causes if status.details else ()
        self.retry_after_s = retry_after_s
        if not retry_after_s and status.details is not None:
            self.retry_after_s = status.details.retry_after_seconds

    @property
    def is_gone(self) -> bool:
        """The resource version is too old, or the continue token has expired: list again."""
        return self.code == 410

    @property
    def is_not_found(self) -> bool:
        return self.code == 404

    @property
    def is_conflict(self) -> bool:
        return self.code == 409


class ApiUnreachableError(Exception):
    """No answer: whether the request had an effect is unknown."""
