"""`phalanx whoami`: the caller as the server sees it."""

from typing import TYPE_CHECKING

from phalanx.cli.connection import with_client
from phalanx.cli.output import Json, print_fields, print_json

if TYPE_CHECKING:
    from phalanx.client import Client


@with_client
def whoami(client: "Client", *, as_json: Json = False) -> None:
    """Show your token's name, role and namespaces, and the server.

    phalanx whoami
    """
    identity = client.whoami()
    if as_json:
        print_json(identity)
        return
    own = identity.namespaces
    print_fields(
        [
            ("server", ", ".join(client.servers)),
            ("token", identity.name or "none"),
            ("role", identity.role),
            ("namespaces", "all" if own is None else ", ".join(own) or "none"),
            ("default namespace", client.default_namespace()),
        ]
    )
