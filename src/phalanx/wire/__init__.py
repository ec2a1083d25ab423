"""Messages between server, agents and clients. This package imports only the core."""
