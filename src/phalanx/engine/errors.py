"""Why the engine cannot answer. Neither says anything about the command itself."""


class NotLeading(Exception):  # noqa: N818
    """This server does not lead; ask the one that does."""

    def __init__(self, url: str | None = None) -> None:
        self.url = url
        super().__init__(f"the leader is {url}" if url else "no server leads at the moment")


class Unavailable(Exception):  # noqa: N818
    """The store did not take the change. It may be asked again at once."""
