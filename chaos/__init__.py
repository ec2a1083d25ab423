"""Faults on a real cluster, from a seed, and a checker over what its tasks wrote: `make chaos`."""
