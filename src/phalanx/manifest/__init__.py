"""From what users write to the native job specification."""
