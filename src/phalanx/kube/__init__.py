"""Kubernetes: its API server as the source of truth, its pods as gangs, its nodes as workers."""
