"""A few mutants of manifests against a server; `make fuzz` sends many more."""

from phalanx.host.clock import wall_clock
from phalanx.store.memory import MemoryStore
from tests.fuzz.mutants import corpus, mutants
from tests.integration.api.serving import serving

SEED, COUNT = 12, 300


async def test_no_mutant_of_a_manifest_makes_the_server_fail() -> None:
    statuses = set()
    async with serving(MemoryStore(clock=wall_clock)) as server:
        for number, mutant in enumerate(mutants(SEED, COUNT)):
            reply = await server.call(
                mutant.method, mutant.path, mutant.data, content_type="application/yaml"
            )
            assert reply.status < 500, (number, mutant, reply.body)
            statuses.add(reply.status)
        assert (await server.call("GET", "/readyz")).status == 200
    assert statuses >= {200, 201, 400}


def test_every_dialect_is_mutated() -> None:
    text = b"\n".join(corpus())
    for kind in (
        b"PodGroup",
        b"PyTorchJob",
        b"TFJob",
        b"LatticeJob",
        b"Queue",
        b"volcano",
        b"roles:",
    ):
        assert kind in text
