"""A pure function from the planner state and the time to decisions and reasons."""
