"""`phalanx token`: create, list, rotate and revoke tokens.

Over the API of a server, or with `--store` directly in its database: so the first admin token is
created.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from phalanx.cli import formatting
from phalanx.cli.connection import ServerAddress, connected, with_address
from phalanx.cli.help_pages import HelpCommand
from phalanx.cli.options import whole_number
from phalanx.cli.output import Json, Narrow, note, print_json, print_trimmed, table_of
from phalanx.cli.settings import refuse
from phalanx.cli.stores import audit_record

if TYPE_CHECKING:
    from rich.table import Table

    from phalanx.identity.token_changes import TokenChanges
    from phalanx.identity.tokens import NewToken
    from phalanx.wire.tokens import CreatedToken, TokenView

T = TypeVar("T")

app = typer.Typer(help="Create, list, rotate and revoke API tokens.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Token name, usually that of its user.")]
Role = Annotated[
    str,
    typer.Option(
        "--role",
        metavar="ROLE",
        help="Role: user (jobs of its namespaces), join (workers join the cluster with it), worker"
        " (workers of the plain protocol) or admin.",
    ),
]
Namespaces = Annotated[
    list[str] | None,
    typer.Option(
        "--namespace",
        metavar="NAMESPACE",
        help="Namespace that the user may use; repeat for more, or '*' for all.",
    ),
]
Workers = Annotated[
    str,
    typer.Option(
        "--worker",
        metavar="WORKER",
        help="Worker that a join or worker token is for, or the beginning of names and '*'. A join"
        " token is for all workers by default.",
    ),
]
Expires = Annotated[
    str | None,
    typer.Option(
        "--expires",
        metavar="TIME",
        help="How long the token is valid, like 90d. [default: no limit; 1d for a join token]",
    ),
]
Joins = Annotated[
    int | None,
    typer.Option(
        "--joins",
        metavar="NUMBER",
        parser=whole_number(1),
        help="How many workers can join with the token. [default: no limit]",
    ),
]
StorePlace = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="STORE",
        help="Work on this database, sqlite:PATH or postgres://…, and not over a server.",
    ),
]


@app.command("create", cls=HelpCommand)
@with_address
def create(  # noqa: PLR0913
    address: ServerAddress,
    *,
    name: Name,
    role: Role = "user",
    namespace: Namespaces = None,
    worker: Workers = "",
    expires: Expires = None,
    joins: Joins = None,
    store: StorePlace = None,
    as_json: Json = False,
) -> None:
    """Create a token and print it. It cannot be shown again."""
    namespaces = tuple(namespace or ())
    if store is None:
        with connected(address) as client:
            created = client.create_token(
                name,
                role=role,
                namespaces=namespaces,
                workers=worker,
                expires=expires,
                joins=joins,
            )
    else:
        created = _create_in_store(store, name, role, namespaces, worker, expires, joins)
    _print_created(created, as_json=as_json)


def _create_in_store(  # noqa: PLR0913, PLR0917
    store: str,
    name: str,
    role: str,
    namespaces: tuple[str, ...],
    workers: str,
    expires: str | None,
    joins: int | None,
) -> "CreatedToken":
    from phalanx.core.errors import Invalid  # noqa: PLC0415
    from phalanx.core.spec.durations import duration  # noqa: PLC0415
    from phalanx.identity.tokens import TokenRequest  # noqa: PLC0415

    try:
        lifetime = None if expires is None else duration(expires)
    except Invalid as error:
        refuse(*(f"--expires {problem.message}" for problem in error.problems))
    request = TokenRequest(
        name=name,
        role=role,
        namespaces=namespaces,
        workers=workers,
        lifetime=lifetime,
        joins=joins,
    )
    return _in_store(
        store,
        lambda tokens: _created(
            tokens.create(request, audit_record("create token", "token", name))
        ),
    )


@app.command("list", cls=HelpCommand)
@with_address
def list_tokens(address: ServerAddress, *, store: StorePlace = None, as_json: Json = False) -> None:
    """List tokens, and the credentials of workers, which have the role agent."""
    if store is None:
        with connected(address) as client:
            tokens = client.tokens()
    else:
        tokens = _in_store(store, _listed)
    if as_json:
        print_json(tokens)
    elif not tokens:
        note("no tokens; create one with `phalanx token create NAME`")
    else:
        print_trimmed(_table(tokens))


@app.command("rotate", cls=HelpCommand)
@with_address
def rotate(
    address: ServerAddress, *, name: Name, store: StorePlace = None, as_json: Json = False
) -> None:
    """Give a token a new secret and print it. The previous one is valid until the new one is
    used."""
    if store is None:
        with connected(address) as client:
            created = client.rotate_token(name)
    else:
        created = _in_store(
            store,
            lambda tokens: _created(
                tokens.rotate(name, audit_record("rotate token", "token", name))
            ),
        )
    _print_created(created, as_json=as_json)


@app.command("revoke", cls=HelpCommand)
@with_address
def revoke(address: ServerAddress, *, name: Name, store: StorePlace = None) -> None:
    """Revoke a token, or the credential of a worker (worker:NAME). Every server refuses it within
    5 seconds."""
    if store is None:
        with connected(address) as client:
            client.revoke_token(name)
    else:
        _in_store(
            store, lambda tokens: tokens.revoke(name, audit_record("revoke token", "token", name))
        )


def _print_created(created: "CreatedToken", *, as_json: bool) -> None:
    if as_json:
        print_json(created)
    else:
        typer.echo(created.secret)


def _table(tokens: "list[TokenView]") -> "Table":
    rows = [
        [
            token.name,
            token.role,
            ",".join(token.namespaces) or token.workers or "-",
            "-" if token.joins_left is None else str(token.joins_left),
            _ago(token.used_at),
            _state(token),
            f"{token.prefix}…" if token.prefix else "-",
        ]
        for token in tokens
    ]
    headings = ["TOKEN", "ROLE", "FOR", "#JOINS", "LAST USE", "EXPIRES", "SECRET"]
    return table_of(headings, rows, Narrow(cut=("TOKEN", "FOR"), drop=("JOINS", "LAST USE")))


def _ago(at: str | None) -> str:
    return "-" if at is None else formatting.ago(at, formatting.now())


def _state(token: "TokenView") -> str:
    if token.revoked_at is not None:
        return "revoked"
    if token.expires_at is None:
        return "-"
    is_over = formatting.parse_time(token.expires_at) <= formatting.now()
    return "expired" if is_over else formatting.utc_minute(token.expires_at)


async def _created(creating: "Awaitable[NewToken]") -> "CreatedToken":
    from phalanx.api.tokens import created_view  # noqa: PLC0415

    return created_view(await creating)


async def _listed(tokens: "TokenChanges") -> "list[TokenView]":
    from phalanx.api.tokens import token_view  # noqa: PLC0415

    return [token_view(each) for each in await tokens.list()]


def _in_store(place: str, work: "Callable[[TokenChanges], Awaitable[T]]") -> T:
    """The result of work on a database. Errors end the command."""
    from phalanx.core.errors import CoreError, Invalid  # noqa: PLC0415
    from phalanx.identity.token_changes import TokenChanges  # noqa: PLC0415
    from phalanx.identity.token_registry import TokenRegistry  # noqa: PLC0415
    from phalanx.server import stores  # noqa: PLC0415
    from phalanx.server.config import ConfigError, load  # noqa: PLC0415
    from phalanx.store.protocol import StoreError  # noqa: PLC0415

    try:
        config = load({"store": place})
    except ConfigError as error:
        refuse(*error.problems)
    place = stores.place_of(config)
    if place == "memory":
        refuse(
            "the memory store ends with its process and keeps no tokens; pass another with --store"
        )

    async def opened() -> T:
        store = stores.store_at(place, config["lease"])
        try:
            await store.open()
            return await work(TokenChanges(store, TokenRegistry(store, open_on_loopback=False)))
        finally:
            await store.close()

    try:
        return asyncio.run(opened())
    except Invalid as error:
        refuse(*(f"{problem.path} {problem.message}" for problem in error.problems))
    except CoreError as error:
        refuse(str(error))
    except (StoreError, OSError) as error:
        refuse(f"{stores.shown(place)}: {error}")
