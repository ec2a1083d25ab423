"""Policies: who may do what, decided by Cedar policies of the cluster."""
