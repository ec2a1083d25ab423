"""The agent of a worker: a spawner that owns its processes, and a link that talks to the server."""
