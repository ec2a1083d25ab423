"""Benchmarks of the parts and of a whole cluster, with their goals: `make bench`."""
