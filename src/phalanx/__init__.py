"""Phalanx: a gang scheduler."""
