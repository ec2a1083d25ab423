"""What every process asks of the machine that it runs on: clocks, and durable files."""
