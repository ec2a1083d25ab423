"""Why the engine cannot answer. Neither error says anything about the command itself."""


class NotLeading(Exception):  # noqa: N818
    """This server is not the leader."""

    def __init__(self, url: str | None = None) -> None:
        self.url = url
        super().__init__(f"the leader is {url}" if url else "no server is the leader at the moment")


class Unavailable(Exception):  # noqa: N818
    """The store did not commit the change. The command can be sent again at once."""
