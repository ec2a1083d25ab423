"""Pages of jobs and audit records by (time, id), newest first, and the cursors between them."""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from phalanx.store.protocol import AuditPage, JobPage
from phalanx.store.rows import audit_from, job_from


class Cursor(NamedTuple):
    """The last row of a page. The next page begins with the next older row."""

    created_at: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    id: Annotated[str, msgspec.Meta(pattern=r"\A[^\0]*\Z")]  #: as in the column

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """The cursor that a page gave. Raises ValueError."""
        try:
            raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            cursor: Cursor = _cursor_from(raw)
        except (ValueError, binascii.Error, msgspec.MsgspecError) as error:
            raise _bad_cursor(text) from error
        # The decoder skips unknown characters; only the exact text of a page is accepted.
        if str(cursor) != text:
            raise _bad_cursor(text)
        return cursor


_cursor_from: Callable[[bytes], Any] = msgspec.json.Decoder(Cursor).decode


def job_page(rows: Sequence[Sequence[Any]], limit: int) -> JobPage:
    """The page of rows (created_at, id, document), of which one more than `limit` were read."""
    jobs = tuple(job_from(doc) for _, _, doc in rows[:limit])
    if len(rows) <= limit:
        return JobPage(jobs, None)
    created_at, job_id, _ = rows[limit - 1]
    return JobPage(jobs, str(Cursor(created_at, job_id)))


def audit_page(rows: Sequence[Sequence[Any]], limit: int) -> AuditPage:
    """The page of rows (recorded_at, id, document), of which one more than `limit` were read."""
    records = tuple(audit_from(doc) for _, _, doc in rows[:limit])
    if len(rows) <= limit:
        return AuditPage(records, None)
    recorded_at, record_id, _ = rows[limit - 1]
    return AuditPage(records, str(Cursor(recorded_at, record_id)))


def _bad_cursor(text: str) -> ValueError:
    return ValueError(
        f"{text[:80]!r} is not a cursor of this store; use the cursor of the last page, or none to"
        " begin again"
    )
