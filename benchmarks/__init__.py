"""What the parts can do, measured against their goals: `make bench`."""
