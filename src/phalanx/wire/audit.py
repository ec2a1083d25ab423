"""Audit records."""

import msgspec


class AuditView(msgspec.Struct, frozen=True):
    """A change, or an attempt at one."""

    time: str
    principal: str  #: the name of the token; `local` for a caller without one on an open server
    role: str
    remote: str  #: the address of the caller
    action: str
    kind: str  #: of the target: job, cron, queue, worker or token
    namespace: str
    target: str  #: the id of a job, or the name of another object
    outcome: str  #: done, refused or unknown
    code: str  #: of the error, if it was not done
    request_id: str
    count: int  #: how many requests the record stands for


class AuditList(msgspec.Struct, frozen=True):
    records: tuple[AuditView, ...]
    cursor: str | None  #: asks for the next page; None on the last page
