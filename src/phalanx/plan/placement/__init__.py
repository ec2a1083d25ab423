"""Placement: which node each task of a gang goes to."""
