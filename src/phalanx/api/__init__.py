"""HTTP on top of the engine: what users, operators and workers ask, each answered in one form."""
