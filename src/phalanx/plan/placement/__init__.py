"""Placement: the node for each task of a gang."""
