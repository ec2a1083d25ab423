"""The option `--nodes`: a label selector that only the API server can judge."""

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.errors import ApiStatusError
from phalanx.kube.api.resources import NODES


class NodeOptionError(Exception):
    """The selector is wrong. The message names the option and the cure."""


async def check_node_option(client: ApiClient, selector: str) -> bool:
    """Whether a node has the labels. Raises NodeOptionError, or like `ApiClient.request`."""
    try:
        page = await client.page(NODES, {"labelSelector": selector, "limit": 1})
    except ApiStatusError as error:
        if error.code != 400:
            raise
        raise NodeOptionError(
            f"--nodes is {selector!r}, which is not a label selector"
            f" ({error.message}); write it like pool=training or 'zone in (a, b)'"
        ) from error
    return bool(page.items or page.unreadable)
