"""The plain worker protocol: claims of tasks, and reports about them, over simple HTTP calls."""
