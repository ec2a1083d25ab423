"""Pulls by podman from a registry that asks for a login."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from phalanx.agent.containers.image_pulls import ImagePulls, PullFailed
from phalanx.agent.containers.runtime import find_runtime
from tests.integration.agent.registry import Storage, skip_without_podman

LOGIN = base64.b64encode(b"user:password").decode()


class LockedRegistry(ThreadingHTTPServer):
    """It has no image, and says so only to those who have the login."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.host = f"127.0.0.1:{self.server_port}"


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_known = self.headers.get("Authorization") == f"Basic {LOGIN}"
        self.send_response(404 if is_known else 401)
        self.send_header("WWW-Authenticate", 'Basic realm="images"')
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[LockedRegistry]:
    skip_without_podman()
    with LockedRegistry() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


async def test_an_image_is_pulled_with_the_login_of_the_job(
    registry: LockedRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(tmp_path / "storage", registry.host, registry.server_port)
    for name, value in storage.variables.items():
        monkeypatch.setenv(name, value)
    pulls, reports = ImagePulls(find_runtime()), list[str]()
    image = f"{registry.host}/model:1"
    try:
        with pytest.raises(PullFailed, match=r"cannot pull image .*(unauthorized|authentication)"):
            await pulls.ensure(image, "", reports.append)
        logins = json.dumps({"auths": {registry.host: {"auth": LOGIN}}})
        with pytest.raises(PullFailed, match="404"):
            await pulls.ensure(image, logins, reports.append)
        assert reports == [f"pulling image {image}"] * 2
    finally:
        storage.remove()
