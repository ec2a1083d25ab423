"""The job specification: its fields, how they are read and validated, and how they are printed."""
