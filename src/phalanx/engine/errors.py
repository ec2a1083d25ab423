"""Why the engine cannot answer a command. Each error says whether the command was carried out."""


class NoAnswer(Exception):  # noqa: N818
    """The base of these errors."""


class NotLeading(NoAnswer):
    """This server is not the leader. The command changed nothing."""

    def __init__(self, url: str | None = None) -> None:
        self.url = url
        super().__init__(f"the leader is {url}" if url else "no server is the leader at the moment")


class Unavailable(NoAnswer):
    """The store did not commit the change and never will. The command can be sent again."""


class UncertainOutcome(NoAnswer):
    """The change was sent to the store, and this server stopped before it knew whether it was
    committed."""


class TooManyRequests(Exception):  # noqa: N818
    """The caller sends more than it may; the message names the limit."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class Overloaded(Exception):  # noqa: N818
    """The server has too much to do to take this request; nothing was changed."""
