"""Audit records: durable with their change, listed by pages, removed by their age."""

from typing import Any

import pytest

from phalanx.store.protocol import (
    AuditOutcome,
    AuditQuery,
    AuditRecord,
    Batch,
    CommitFailed,
    Deposed,
    Store,
    Token,
)
from tests.builders import a_job


def a_change(number: int, at: int = 1, **fields: Any) -> AuditRecord:
    given = {"principal": "eve", "role": "admin", "remote": "127.0.0.1", "action": "hold"} | fields
    return AuditRecord(id=f"a-{number}", at=at, **given)


async def ids(store: Store, **query: Any) -> list[str]:
    page = await store.audit(AuditQuery(**query), limit=100)
    return [record.id for record in page.records]


async def test_a_record_is_stored_with_its_change_or_not_at_all(store: Store, term: int) -> None:
    record = a_change(1, kind="job", namespace="ml", target="j-1", request_id="r-7")
    await store.commit(term, Batch("b-1", jobs=(a_job("j-1", created_at=1),), audit=(record,)))
    assert (await store.audit(AuditQuery(), limit=10)).records == (record,)
    other = a_job("j-1", created_at=2)
    with pytest.raises(CommitFailed):
        await store.commit(term, Batch("b-2", jobs=(other,), audit=(a_change(2),)))
    with pytest.raises(Deposed):
        await store.commit(term + 1, Batch("b-3", audit=(a_change(3),)))
    assert await ids(store) == ["a-1"]


async def test_pages_are_newest_first_and_neither_repeat_nor_skip(store: Store, term: int) -> None:
    records = tuple(a_change(number, at=number // 2) for number in range(7))
    await store.commit(term, Batch("b-1", audit=records))
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await store.audit(AuditQuery(), limit=2, cursor=cursor or None)
        seen += [record.id for record in page.records]
        cursor = page.cursor
    assert seen == [f"a-{number}" for number in reversed(range(7))]
    with pytest.raises(ValueError, match="is not a cursor"):
        await store.audit(AuditQuery(), limit=2, cursor="nonsense")


async def test_records_are_selected_by_time_principal_namespace_and_target(store: Store) -> None:
    await store.add_audit(
        [
            a_change(1, at=10, principal="ann", namespace="ml", target="j-1"),
            a_change(2, at=20, principal="bob", namespace="ml", target="j-2"),
            a_change(3, at=30, outcome=AuditOutcome.REFUSED, code="forbidden", count=7),
        ]
    )
    assert await ids(store, since=20) == ["a-3", "a-2"]
    assert await ids(store, until=20) == ["a-1"]
    assert await ids(store, principal="bob") == ["a-2"]
    assert await ids(store, namespace="ml") == ["a-2", "a-1"]
    assert await ids(store, target="j-1", since=5, until=11) == ["a-1"]
    assert await ids(store, target="j-1", principal="bob") == []


async def test_old_records_are_removed_a_few_at_a_time(store: Store) -> None:
    await store.add_audit([a_change(number, at=number) for number in range(5)])
    assert await store.prune_audit(4, limit=3) == 3
    assert await store.prune_audit(4, limit=3) == 1
    assert await store.prune_audit(4, limit=3) == 0
    assert await ids(store) == ["a-4"]


async def test_a_change_of_a_token_is_stored_with_its_record(store: Store) -> None:
    token = Token("ada", "admin", "digest", "phx_", 1)
    assert await store.add_token(token, a_change(1, action="create token", target="ada"))
    assert not await store.add_token(token, a_change(2, action="create token", target="ada"))
    assert await store.remove_token("ada", a_change(3, action="revoke token", target="ada"))
    assert not await store.remove_token("ada", a_change(4, action="revoke token", target="ada"))
    assert await ids(store, target="ada") == ["a-3", "a-1"]
