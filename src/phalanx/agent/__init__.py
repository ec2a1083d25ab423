"""The agent of a worker: a spawner that runs the tasks, and a link that talks to the server."""
