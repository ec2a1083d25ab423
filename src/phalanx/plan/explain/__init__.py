"""Why a job is pending, and what would let it start."""
