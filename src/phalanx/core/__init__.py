"""What is true and what may happen next: pure, no I/O, no clock, no randomness."""
