"""The one writer: commands in, one commit for all of them, and only then the answers."""
