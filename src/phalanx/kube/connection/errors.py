"""Errors of a connection that the user can correct."""


class ConnectionConfigError(Exception):
    """The connection is not configured, or not usable. The message names the file and the cure."""
