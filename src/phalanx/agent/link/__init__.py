"""The half of the agent that talks to the server: syncs, reports, checkpoints and logs."""
