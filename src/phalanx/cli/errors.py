"""What a client has met, as the end of a command: a status, and a sentence with the cure in it."""

from typing import NoReturn

from phalanx.cli.exits import Status, end
from phalanx.client.errors import (
    DeniedError,
    InvalidError,
    NotFoundError,
    PhalanxError,
    UnavailableError,
    UnreachableError,
)
from phalanx.wire.errors import ErrorInfo


def end_for(error: PhalanxError, servers: tuple[str, ...], *, is_default: bool) -> NoReturn:
    """Leave as befits what the client has met."""
    if isinstance(error, UnreachableError):
        end(Status.UNREACHABLE, _unreachable(error, servers, is_default=is_default))
    if isinstance(error, UnavailableError):
        end(Status.UNREACHABLE, f"{error}; try again")
    if isinstance(error, NotFoundError):
        end(Status.NOT_FOUND, str(error))
    if isinstance(error, InvalidError):
        end(Status.USAGE, *wrongs_of(error.info))
    if isinstance(error, DeniedError) and error.status == 401:
        end(
            Status.REFUSED,
            f"{error}; name yours with --token or PHALANX_TOKEN (an operator makes one with"
            " `phalanx token create`)",
        )
    end(Status.REFUSED, str(error))


def wrongs_of(info: ErrorInfo) -> list[str]:
    """Each thing that is wrong as a sentence of its own."""
    return [f"{each.path} {each.message}".strip() for each in info.details] or [info.message]


def _unreachable(error: UnreachableError, servers: tuple[str, ...], *, is_default: bool) -> str:
    if "may have done it" in str(error):
        return str(error)
    where = " or ".join(servers)
    if "Connection refused" not in str(error):
        return f"{error}; is {where} the right place? name it with --server or PHALANX_SERVER"
    if is_default:
        return (
            f"no server at {where}; start one with `phalanx up`, or name it with --server or"
            " PHALANX_SERVER"
        )
    return f"no server at {where}; start one there, or name another with --server or PHALANX_SERVER"
