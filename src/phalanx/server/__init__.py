"""A server as a process: its configuration, who may speak to it, and what is seen of it."""
