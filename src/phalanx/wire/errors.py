"""What every refusal looks like."""

import msgspec


class ErrorDetail(msgspec.Struct, frozen=True):
    """One thing that is wrong with what was sent."""

    path: str  #: `roles.worker.min`; empty for the whole of it
    message: str  #: goes on from the path; a sentence if there is none


class ErrorInfo(msgspec.Struct, frozen=True):
    code: str  #: for programs: `invalid`, `not_found`, `conflict`, `stale_epoch`, `no_leader`…
    message: str  #: for people
    details: tuple[ErrorDetail, ...] = ()


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorInfo
