"""`phalanx ca`: list, rotate and remove the certificate authorities of `tls auto`."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from phalanx.cli.help_pages import HelpCommand
from phalanx.cli.output import Json, print_json
from phalanx.cli.settings import refuse, with_settings
from phalanx.cli.stores import audit_record, with_store
from phalanx.cli.visible_text import say
from phalanx.server.config import Config
from phalanx.store.protocol import Store
from phalanx.tls.fingerprint import fingerprint_of, read_fingerprint

app = typer.Typer(
    help="List, rotate and remove the certificate authorities of `tls auto`.", no_args_is_help=True
)

Fingerprint = Annotated[
    str, typer.Argument(metavar="SHA256", help="Fingerprint of the authority to remove.")
]


@app.command("list", cls=HelpCommand)
@with_settings("store")
def list_authorities(config: Config, *, as_json: Json = False) -> None:
    """List the certificate authorities, the latest first: fingerprint, expiry and use."""
    from cryptography import x509  # noqa: PLC0415

    stored = with_store(config, lambda store: store.authorities())
    rows = []
    for authority in reversed(stored):
        certificate = x509.load_pem_x509_certificate(authority.certificate.encode())
        rows.append(
            {
                "fingerprint": fingerprint_of(authority.certificate),
                "expires": certificate.not_valid_after_utc.strftime("%Y-%m-%d"),
                "use": "signs" if authority is stored[-1] else "trusted",
            }
        )
    if as_json:
        print_json(rows)
        return
    for row in rows:
        say("  ".join(row.values()))


@app.command("rotate", cls=HelpCommand)
@with_settings("store")
def rotate(config: Config) -> None:
    """Add a certificate authority, which signs from now on, and print its fingerprint.

    Running servers notice within seconds. The earlier authorities stay trusted until you remove
    them.
    """
    say(with_store(config, _rotate))


async def _rotate(store: Store) -> str:
    from phalanx.server.cluster_certificates import (  # noqa: PLC0415
        first_authority,
        next_authority,
    )

    while True:
        stored, now = await store.authorities(), datetime.now(UTC)
        added = next_authority(stored[-1], now) if stored else first_authority(now)
        if await store.add_authority(added):
            fingerprint = fingerprint_of(added.certificate)
            await store.add_audit([audit_record("rotate authority", "authority", fingerprint)])
            return fingerprint


@app.command("remove", cls=HelpCommand)
@with_settings("store")
def remove(config: Config, *, fingerprint: Fingerprint) -> None:
    """Remove an earlier certificate authority. Clients and workers that pin it are refused."""
    try:
        wanted = read_fingerprint(fingerprint)
    except ValueError as error:
        refuse(str(error))

    async def removed(store: Store) -> str | None:
        stored = await store.authorities()
        found = [each for each in stored if fingerprint_of(each.certificate) == wanted]
        if not found:
            return f"there is no authority {wanted}; list them with `phalanx ca list`"
        if found[0] is stored[-1]:
            return f"{wanted} signs the certificates; run `phalanx ca rotate` first"
        await store.remove_authority(found[0].number)
        await store.add_audit([audit_record("remove authority", "authority", wanted)])
        return None

    if problem := with_store(config, removed):
        refuse(problem)
