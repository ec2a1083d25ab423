"""Faults of a Kubernetes scheduler on a real API server, and a checker over the API objects."""
