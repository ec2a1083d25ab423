"""Refused requests: a flood of them is counted in a bounded number of records."""

import pytest

from phalanx.core.time_units import HOUR
from phalanx.engine.refused_requests import RefusedRequests
from phalanx.sim.loop import run_virtually
from phalanx.store.memory import MemoryStore
from phalanx.store.protocol import AuditOutcome, AuditQuery, AuditRecord, StoreError


def refusal(number: int, remote: str = "10.0.0.1", at: int = 0, principal: str = "") -> AuditRecord:
    return AuditRecord(
        f"a-{number}",
        at,
        principal,
        "user" if principal else "",
        remote,
        "submit",
        outcome=AuditOutcome.REFUSED,
        code="unauthorised",
    )


def test_equal_refusals_are_one_record_with_a_count() -> None:
    async def story() -> None:
        store = MemoryStore(clock=lambda: 0)
        refused = RefusedRequests(store, lambda: 0)
        for number in range(500):
            refused.add(refusal(number))
        await refused.flush()
        [record] = (await store.audit(AuditQuery(), limit=10)).records
        assert (record.id, record.count, record.code) == ("a-0", 500, "unauthorised")

    run_virtually(story())


def test_a_flood_of_one_caller_does_not_hide_the_others() -> None:
    async def story() -> None:
        store = MemoryStore(clock=lambda: 0)
        refused = RefusedRequests(store, lambda: 0)
        for number in range(2_000):
            refused.add(refusal(number, f"10.{number // 200}.{number % 200}.1"))
        for number in range(2_000):
            refused.add(refusal(number, f"10.{number // 200}.{number % 200}.1", principal="eve"))
        refused.add(refusal(2_000, principal="bob"))
        await refused.flush()
        records = (await store.audit(AuditQuery(), limit=10_000)).records
        assert [each.count for each in records if each.principal == "bob"] == [1]
        others = {each.action: each.count for each in records if each.code == "several"}
        assert others == {"other requests": 1_000, "other requests without a valid token": 1_000}

    run_virtually(story())


@pytest.mark.parametrize(
    ("addresses", "recorded"),
    [
        (["10.0.0.1", "10.0.0.1"], "10.0.0.1"),
        (["10.0.0.1", "10.0.0.2", "::ffff:10.0.0.3"], "10.0.0.0/24"),
        (["2001:db8::1", "2001:db8::2:1"], "2001:db8::/64"),
    ],
)
def test_callers_without_a_token_are_counted_by_their_network(
    addresses: list[str], recorded: str
) -> None:
    async def story() -> None:
        store = MemoryStore(clock=lambda: 0)
        refused = RefusedRequests(store, lambda: 0)
        for number, address in enumerate(addresses):
            refused.add(refusal(number, address))
        await refused.flush()
        [record] = (await store.audit(AuditQuery(), limit=10)).records
        assert (record.remote, record.count) == (recorded, len(addresses))

    run_virtually(story())


def test_a_flood_from_many_networks_writes_a_bounded_number_of_records() -> None:
    async def story() -> None:
        store = MemoryStore(clock=lambda: 0)
        refused = RefusedRequests(store, lambda: 0)
        for number in range(20_000):
            refused.add(refusal(number, f"10.{number // 200}.{number % 200}.1"))
            if number % 5_000 == 4_999:
                await refused.flush()
        records = (await store.audit(AuditQuery(), limit=10_000)).records
        assert len(records) == 1000 + 4
        assert sum(record.count for record in records) == 20_000
        # An hour later single records are written again.
        refused.add(refusal(20_000, "10.1.1.1", at=HOUR))
        await refused.flush()
        [newest] = (await store.audit(AuditQuery(), limit=1)).records
        assert newest.remote == "10.1.1.1"

    run_virtually(story())


class Absent(MemoryStore):
    is_away = True

    async def add_audit(self, records: object) -> None:
        if self.is_away:
            raise StoreError("away")
        await super().add_audit(records)  # type: ignore[arg-type]


def test_records_are_kept_until_the_store_is_back() -> None:
    async def story() -> None:
        store = Absent(clock=lambda: 0)
        refused = RefusedRequests(store, lambda: 0)
        refused.add(refusal(1))
        try:
            await refused.flush()
        except StoreError:
            store.is_away = False
        refused.add(refusal(2))
        await refused.flush()
        [record] = (await store.audit(AuditQuery(), limit=10)).records
        assert record.count == 2

    run_virtually(story())
