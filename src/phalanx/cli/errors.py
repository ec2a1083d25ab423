"""Client errors as the end of a command: an exit status, and a sentence that says what to do."""

from typing import NoReturn

from phalanx.cli.exits import Status, end
from phalanx.client.errors import (
    DeniedError,
    InvalidError,
    NotFoundError,
    PhalanxError,
    UnknownOutcomeError,
    UnreachableError,
    UntrustedError,
)
from phalanx.wire.errors import ErrorInfo


def end_for(error: PhalanxError, servers: tuple[str, ...], *, is_default: bool) -> NoReturn:
    """Exit with the status and the sentence for this error."""
    if isinstance(error, UnknownOutcomeError | UntrustedError):
        end(Status.UNREACHABLE, str(error))
    if isinstance(error, UnreachableError):
        end(Status.UNREACHABLE, _unreachable(error, servers, is_default=is_default))
    if isinstance(error, NotFoundError):
        end(Status.NOT_FOUND, str(error))
    if isinstance(error, InvalidError):
        end(Status.USAGE, *problems_of(error.info))
    if isinstance(error, DeniedError) and error.status == 401:
        end(
            Status.REFUSED,
            f"{error}; pass yours with --token-file or PHALANX_TOKEN (an administrator creates one"
            " with `phalanx token create`)",
        )
    end(Status.REFUSED, str(error))


def problems_of(info: ErrorInfo) -> list[str]:
    """One sentence for each problem that the server found in the request."""
    return [f"{each.path} {each.message}".strip() for each in info.details] or [info.message]


def _unreachable(error: UnreachableError, servers: tuple[str, ...], *, is_default: bool) -> str:
    where = " or ".join(servers)
    if "certificate" in str(error):
        return str(error)
    if "connection refused" not in str(error) or "leader" in str(error):
        return f"{error}; check the address, or pass another with --server or PHALANX_SERVER"
    if is_default:
        return (
            f"no server at {where}; start one with `phalanx up`, or pass its address with --server"
            " or PHALANX_SERVER"
        )
    return (
        f"no server at {where}; start one there, or pass another address with --server or"
        " PHALANX_SERVER"
    )
