"""What the scheduler writes: binds, evictions, conditions, statuses and events."""
