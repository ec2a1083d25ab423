"""Objects are changed together, and every change has a version."""

from phalanx.store.protocol import AuditQuery, AuditRecord, ClusterObject, ObjectKey, Store
from tests.compliance.backends import Backend


def policy(name: str, body: str = "permit", namespace: str = "") -> ClusterObject:
    return ClusterObject("policy", namespace, name, body, 7, "ada")


async def test_objects_are_replaced_and_removed_together(store: Store) -> None:
    assert await store.objects() == ()
    before = await store.objects_version()
    first = await store.change_objects([policy("b"), policy("a"), policy("a", namespace="ml")])
    assert first == before + 1
    assert await store.objects() == (policy("a"), policy("b"), policy("a", namespace="ml"))
    second = await store.change_objects(
        [policy("b", "forbid")], [ObjectKey("policy", "", "a"), ObjectKey("policy", "", "none")]
    )
    assert second == await store.objects_version() == first + 1
    assert await store.objects() == (policy("b", "forbid"), policy("a", namespace="ml"))


async def test_another_server_reads_the_objects(store: Store, backend: Backend) -> None:
    await store.change_objects([policy("a", "π\U0001f511")])
    other = backend.handle()
    await other.open()
    try:
        assert await other.objects() == (policy("a", "π\U0001f511"),)
        assert await other.objects_version() == await store.objects_version()
    finally:
        await other.close()


async def test_a_change_of_objects_is_audited_in_its_transaction(store: Store) -> None:
    record = AuditRecord("a-1", 5, "ada", "admin", "::1", "apply policies")
    await store.change_objects([policy("a")], (), record)
    assert (await store.audit(AuditQuery(), limit=5)).records == (record,)
