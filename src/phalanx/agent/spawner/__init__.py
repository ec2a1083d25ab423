"""The half of the agent that owns the processes: it launches, stops and remembers them."""
