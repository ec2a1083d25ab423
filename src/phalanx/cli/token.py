"""`phalanx token`: create, list and revoke API tokens. Works directly on the server's store."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import typer

from phalanx.cli.help_pages import HelpCommand
from phalanx.cli.output import Json
from phalanx.cli.settings import refuse, with_settings
from phalanx.server.config import Config
from phalanx.store.protocol import Store, StoreError

T = TypeVar("T")

app = typer.Typer(help="Create, list and revoke API tokens.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Token name, usually that of its user.")]
Role = Annotated[
    str,
    typer.Option(
        "--role",
        metavar="ROLE",
        help="Role: user (jobs of its namespaces), worker (worker agents) or admin.",
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


@app.command("create", cls=HelpCommand)
@with_settings("store")
def create(
    config: Config, *, name: Name, role: Role = "user", namespace: Namespaces = None
) -> None:
    """Create a token and print it. It cannot be shown again."""
    from phalanx.server.tokens import ROLES, new_token  # noqa: PLC0415
    from phalanx.store.sqlite import wall_clock  # noqa: PLC0415

    namespaces = tuple(namespace or ())
    if role not in ROLES:
        refuse(f"--role is {role}; write {', '.join(ROLES[:-1])} or {ROLES[-1]}")
    if role == "user" and not namespaces:
        refuse("a user token needs a namespace; pass --namespace NAME, or --namespace '*' for all")
    if role != "user" and namespaces:
        refuse(f"a token of role {role} has no namespace; omit --namespace")
    created = new_token(name, role, namespaces, wall_clock())
    if not _with_store(config, lambda store: store.add_token(created.token)):
        refuse(f"token {name} exists already; revoke it first with `phalanx token revoke {name}`")
    typer.echo(created.secret)


@app.command("list", cls=HelpCommand)
@with_settings("store")
def list_tokens(config: Config, *, as_json: Json = False) -> None:
    """List tokens: name, role, first characters, creation date and namespaces."""
    tokens = _with_store(config, lambda store: store.tokens())
    if as_json:
        fields = ("name", "role", "namespaces", "prefix", "created_at")
        document = [{each: getattr(token, each) for each in fields} for token in tokens]
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    for token in tokens:
        created = datetime.fromtimestamp(token.created_at / 1_000_000, UTC).strftime("%Y-%m-%d")
        namespaces = ",".join(token.namespaces) or "-"
        typer.echo(f"{token.name:20} {token.role:7} {token.prefix}…  {created}  {namespaces}")


@app.command("revoke", cls=HelpCommand)
@with_settings("store")
def revoke(config: Config, *, name: Name) -> None:
    """Revoke a token. Running servers notice within seconds."""
    if not _with_store(config, lambda store: store.remove_token(name)):
        refuse(f"there is no token {name}; list the tokens with `phalanx token list`")


def _with_store(config: Config, work: Callable[[Store], Awaitable[T]]) -> T:
    from phalanx.server import stores  # noqa: PLC0415

    place = stores.place_of(config)
    if place == "memory":
        refuse(
            "the memory store ends with its process and keeps no tokens; pass another with --store"
        )

    async def opened() -> T:
        store = stores.store_at(place, config["lease"])
        try:
            await store.open()
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(opened())
    except (StoreError, OSError) as error:
        refuse(f"{stores.shown(place)}: {error}")
