"""Counters and histograms under the prefix `phalanx_`, with shared buckets."""

from prometheus_client import CollectorRegistry, Counter, Histogram

#: Buckets for waits and runs of jobs, in seconds.
LONG_S = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 6 * 3600, 24 * 3600)
#: Buckets for what the server does, in seconds.
SHORT_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class Families:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"phalanx_{name}", text, labels, registry=self._registry)

    def histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"phalanx_{name}", text, buckets=buckets, registry=self._registry)
