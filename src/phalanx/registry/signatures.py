"""Signatures of images by keys, in the format of cosign.

The signatures of an image are a manifest with the tag `sha256-DIGEST.sig` in its repository. Each
layer is a payload that names the digest of the image, and the layer's annotation is the signature
of the payload.
"""

import base64
import binascii
import json
from collections.abc import Sequence

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from phalanx.registry.image_reference import ImageReference
from phalanx.registry.logins import read_logins
from phalanx.registry.registry_client import (
    AccessRefused,
    NotInRegistry,
    RegistryClient,
    RegistryError,
)
from phalanx.wire.sync import RequiredSignature

_ANNOTATION = "dev.cosignproject.cosign/signature"
_PAYLOAD_TYPE = "cosign container image signature"
#: Signatures of one image that are read.
_MOST_SIGNATURES = 50

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey


class SignatureRefused(Exception):  # noqa: N818
    """An image does not have a signature that is required; the message says why."""


class SignatureUnknown(Exception):  # noqa: N818
    """The signatures of an image cannot be read now; the message says why."""


def read_key(pem: str) -> PublicKey:
    """Raises ValueError."""
    try:
        key = load_pem_public_key(pem.encode())
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from None
    if not isinstance(key, PublicKey):
        raise ValueError("it is not an ECDSA, RSA or Ed25519 key")  # noqa: TRY004
    return key


async def verify_image(
    image: str, required: Sequence[RequiredSignature], registry_auth: str = ""
) -> None:
    """Check that an image, given by its digest, has every signature that is required.

    To be called before each start, also if the image is present: a key may have been withdrawn
    since. `registry_auth` has logins in the form of Docker's config.json.
    Raises SignatureRefused, and SignatureUnknown if the registry does not answer.
    """
    if not required:
        return
    reference = ImageReference.parse(image)
    if reference.digest is None or not reference.has_valid_digest:
        raise SignatureRefused(f"image {image} has no digest, so no signature can be checked")
    try:
        login = read_logins(registry_auth).get(reference.registry) if registry_auth else None
        async with RegistryClient(reference, login) as registry:
            signed = await _signed_payloads(registry, reference.digest)
    except NotInRegistry:
        signed = []
    except AccessRefused as error:
        raise SignatureRefused(f"the signatures of image {image} cannot be read: {error}") from None
    except RegistryError as error:
        raise SignatureUnknown(f"the signatures of image {image} cannot be read: {error}") from None
    for each in required:
        keys = [read_key(pem) for pem in each.keys]
        if not any(is_signed(reference.digest, *pair, keys) for pair in signed):
            found = "has no signature" if not signed else "is not signed by its key"
            raise SignatureRefused(
                f"trust policy {each.policy} requires a signature, and image {image} {found}"
            )


async def _signed_payloads(registry: RegistryClient, digest: str) -> list[tuple[bytes, bytes]]:
    """Payloads with their signatures."""
    manifest = (await registry.manifest(f"{digest.replace(':', '-')}.sig")).json()
    payloads = []
    for layer in manifest.get("layers", [])[:_MOST_SIGNATURES]:
        written = (layer.get("annotations") or {}).get(_ANNOTATION)
        if not isinstance(written, str):
            continue
        try:
            signature = base64.b64decode(written, validate=True)
        except binascii.Error:
            continue
        payloads.append((await registry.blob(layer["digest"]), signature))
    return payloads


def is_signed(digest: str, payload: bytes, signature: bytes, keys: Sequence[PublicKey]) -> bool:
    """Whether the payload is about the image of that digest, and one of the keys signed it."""
    try:
        critical = json.loads(payload)["critical"]
        is_of_image = critical["image"]["docker-manifest-digest"] == digest
        is_signature = critical["type"] == _PAYLOAD_TYPE
    except (ValueError, KeyError, TypeError):
        return False
    return is_of_image and is_signature and any(_verifies(key, payload, signature) for key in keys)


def _verifies(key: PublicKey, payload: bytes, signature: bytes) -> bool:
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, payload, ec.ECDSA(hashes.SHA256()))
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, payload, padding.PKCS1v15(), hashes.SHA256())
        else:
            key.verify(signature, payload)
    except InvalidSignature:
        return False
    return True
