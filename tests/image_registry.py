"""A real container registry on a loopback address, and images and signatures in it."""

import base64
import hashlib
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.plain_http import http_client
from tests.ports import free_port

PATIENCE_S = 60
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = """
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: 127.0.0.1:{port}}}
log: {{level: error}}
"""


class SigningKey:
    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.pem = (
            self._key.public_key()
            .public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            .decode()
        )

    def sign(self, data: bytes) -> str:
        return base64.b64encode(self._key.sign(data, ec.ECDSA(hashes.SHA256()))).decode()


class Registry:
    """`docker-registry serve`. Until the end of the block."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._config = folder / "registry.yml"
        self._config.write_text(_CONFIG.format(folder=folder / "data", port=self.port))
        self._http = http_client(f"http://{self.address}/v2/", trust_env=False)

    def __enter__(self) -> "Registry":
        words = ["docker-registry", "serve", str(self._config)]
        self._process = subprocess.Popen(  # noqa: S603
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + PATIENCE_S
        while not self._answers():
            assert self._process.poll() is None
            assert time.monotonic() < deadline
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._http.close()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            return self._http.get("").status_code == 200
        except httpx.HTTPError:
            return False

    def push(self, repository: str, tag: str, content: str = "one") -> str:
        """Push an image of one layer: its digest."""
        config = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers"}}
        layer = content.encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": self._blob(
                repository, json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"
            ),
            "layers": [self._blob(repository, layer, "application/vnd.oci.image.layer.v1.tar")],
        }
        return self._manifest(repository, tag, manifest)

    def sign(self, repository: str, digest: str, key: SigningKey, *, says: str = "") -> None:
        """Sign as cosign does; `says` is the digest in the payload, if it is another one."""
        payload = json.dumps(
            {
                "critical": {
                    "identity": {"docker-reference": f"{self.address}/{repository}"},
                    "image": {"docker-manifest-digest": says or digest},
                    "type": "cosign container image signature",
                },
                "optional": None,
            }
        ).encode()
        kind = "application/vnd.dev.cosign.simplesigning.v1+json"
        layer = self._blob(repository, payload, kind)
        layer["annotations"] = {"dev.cosignproject.cosign/signature": key.sign(payload)}
        config = self._blob(repository, b"{}", "application/vnd.oci.image.config.v1+json")
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": config,
            "layers": [layer],
        }
        self._manifest(repository, f"{digest.replace(':', '-')}.sig", manifest)

    def _blob(self, repository: str, data: bytes, media_type: str) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        begun = self._http.post(f"{repository}/blobs/uploads/")
        location = begun.headers["location"]
        url = f"{location}{'&' if '?' in location else '?'}digest={digest}"
        self._http.put(url, content=data).raise_for_status()
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    def _manifest(self, repository: str, tag: str, manifest: dict[str, Any]) -> str:
        data = json.dumps(manifest).encode()
        answer = self._http.put(
            f"{repository}/manifests/{tag}", content=data, headers={"Content-Type": _MANIFEST}
        )
        answer.raise_for_status()
        return f"sha256:{hashlib.sha256(data).hexdigest()}"
