"""Notes are replaced by kind and name, listed by name, and removed by age."""

from phalanx.store.protocol import Note, Store


async def test_notes_are_replaced_listed_and_removed(store: Store) -> None:
    assert await store.notes("usage") == ()
    for note in (
        Note("usage", "b", 1, "[1]"),
        Note("usage", "a", 5, "[2]"),
        Note("usage", "b", 3, "[3]"),
        Note("standby", "a", 1, "http://a"),
    ):
        await store.put_note(note)
    assert await store.notes("usage") == (
        Note("usage", "a", 5, "[2]"),
        Note("usage", "b", 3, "[3]"),
    )
    await store.remove_notes("usage", 4)
    assert [note.name for note in await store.notes("usage")] == ["a"]
    assert len(await store.notes("standby")) == 1
