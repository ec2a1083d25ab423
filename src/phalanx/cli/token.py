"""`phalanx token`: who may speak to the server. Works on the store itself, whoever leads."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import typer

from phalanx.cli.settings import refuse, with_settings
from phalanx.server.config import Config
from phalanx.store.protocol import Store, StoreError

T = TypeVar("T")

app = typer.Typer(help="Who may speak to the server.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose it is.")]
Role = Annotated[
    str,
    typer.Option(
        "--role",
        metavar="ROLE",
        help="user (jobs of its namespaces), worker (speaks only for workers) or admin.",
    ),
]
Namespaces = Annotated[
    list[str] | None,
    typer.Option(
        "--namespace",
        metavar="NAMESPACE",
        help="A namespace that a user may use; repeat it for more. * is all of them.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]


@app.command("create")
@with_settings("store")
def create(
    config: Config, *, name: Name, role: Role = "user", namespace: Namespaces = None
) -> None:
    """Make a token and print it. It is shown only now."""
    from phalanx.server.tokens import ROLES, mint  # noqa: PLC0415
    from phalanx.store.sqlite import wall_clock  # noqa: PLC0415

    namespaces = tuple(namespace or ())
    if role not in ROLES:
        refuse(f"--role is {role}; write {', '.join(ROLES[:-1])} or {ROLES[-1]}")
    if role == "user" and not namespaces:
        refuse("a user needs a namespace; give --namespace NAME, or --namespace '*' for all")
    if role != "user" and namespaces:
        refuse(f"a token of role {role} is for no namespace; leave --namespace out")
    minted = mint(name, role, namespaces, wall_clock())
    if not _on(config, lambda store: store.add_token(minted.token)):
        refuse(f"there is a token {name} already; revoke it first: phalanx token revoke {name}")
    typer.echo(minted.secret)


@app.command("list")
@with_settings("store")
def list_tokens(config: Config, *, as_json: Json = False) -> None:
    """List the tokens by what can be told of them."""
    tokens = _on(config, lambda store: store.tokens())
    if as_json:
        kept = ("name", "role", "namespaces", "prefix", "created_at")
        document = [{each: getattr(token, each) for each in kept} for token in tokens]
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    for token in tokens:
        made = datetime.fromtimestamp(token.created_at / 1_000_000, UTC).strftime("%Y-%m-%d")
        namespaces = ",".join(token.namespaces) or "-"
        typer.echo(f"{token.name:20} {token.role:7} {token.prefix}…  {made}  {namespaces}")


@app.command("revoke")
@with_settings("store")
def revoke(config: Config, *, name: Name) -> None:
    """Forget a token; running servers notice within seconds."""
    if not _on(config, lambda store: store.remove_token(name)):
        refuse(f"there is no token {name}; list them with: phalanx token list")


def _on(config: Config, work: Callable[[Store], Awaitable[T]]) -> T:
    from phalanx.server import stores  # noqa: PLC0415

    place = stores.place_of(config)
    if place == "memory":
        refuse("the memory store ends with its process; name another with --store")

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
