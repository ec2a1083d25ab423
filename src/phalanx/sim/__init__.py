"""The production engine, store and sync protocol under a virtual clock, with faults from a seed."""
