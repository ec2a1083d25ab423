"""The half of the agent that talks to the server: it syncs, reports, and sends logs."""
