"""Scenarios: a cluster written in a file, planned, and compared with what the file expects."""
