"""A cluster to try things on: it knows all that the real one knows, and changes nothing there."""

from tests.driver import Driver, spec

from phalanx.core.cluster import Cluster
from phalanx.core.events import CancelRequested, QueueSet, Submitted
from phalanx.core.model import Queue


def contents(cluster: Cluster) -> dict[str, object]:
    """All that a cluster holds, as far down as it changes."""
    return {
        name: {key: set(v) if isinstance(v, set) else v for key, v in value.items()}
        if isinstance(value, dict)
        else value
        for name, value in vars(cluster).items()
    }


def test_what_happens_to_a_twin_happens_nowhere_else() -> None:
    driver = Driver()
    driver.fleet("a", "b", resources={"gpu": 1000})
    first = driver.submit(spec(name="one", group=["default/two"]))
    driver.submit(spec(after=[first]))
    before = contents(driver.cluster)
    copy = driver.cluster.copy()
    assert contents(copy) == before
    copy.apply(QueueSet(Queue("new")), driver.now)
    copy.apply(Submitted("j-9", spec(name="two", group=["default/one"], after=[first])), driver.now)
    copy.apply(CancelRequested(first), driver.now)
    assert contents(copy) != before
    assert contents(driver.cluster) == before
