"""The output of tasks, on its way from workers to the store and to readers that follow it."""
