"""Secrets: encrypted in the store, or read from files and variables of the server."""
