"""The shapes that travel between server, agents and clients; they import only the core."""
