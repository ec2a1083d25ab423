"""Principals, tokens, and the credentials of workers."""
