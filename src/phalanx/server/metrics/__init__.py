"""Metrics: what a server counts and measures, for Prometheus."""
