"""A pure function from a snapshot of the cluster to decisions and reasons."""
