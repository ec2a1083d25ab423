"""The planner state: nodes, capacity, pending and running gangs, kept up to date by deltas."""
