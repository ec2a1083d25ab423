"""What every process asks of the machine that it runs on: clocks, durable
files, and an interpreter."""
