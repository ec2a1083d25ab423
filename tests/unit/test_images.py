"""Images: tags are pinned to digests, trust policies hold, signatures are checked."""

import base64
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.image_registry import Registry, SigningKey
from tests.requirements import require_programs

from phalanx.core.errors import Invalid
from phalanx.core.spec.validation import job_spec
from phalanx.engine.gang_inputs import ImagePreview
from phalanx.engine.object_registry import ObjectRegistry
from phalanx.policy.authorizer import KIND, Authorizer
from phalanx.policy.trust import PolicyDenied, TrustPolicies, read_trust
from phalanx.registry import registry_client
from phalanx.registry.image_pins import ImagePins
from phalanx.registry.logins import RegistryLogin
from phalanx.registry.registry_client import RegistryError
from phalanx.registry.signatures import (
    SignatureRefused,
    SignatureUnknown,
    is_signed,
    read_key,
    verify_image,
)
from phalanx.secrets.providers import SecretResolver
from phalanx.secrets.stored_secrets import StoredSecrets
from phalanx.server.job_inputs import JobInputs
from phalanx.store.memory import MemoryStore
from phalanx.store.protocol import ClusterObject
from phalanx.wire.sync import RequiredSignature


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    require_programs("docker-registry")
    with Registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that is slow on a busy machine is not one that cannot be reached."""
    monkeypatch.setattr(registry_client, "_TIMEOUT_S", 60.0)
    monkeypatch.setattr(registry_client, "_ANSWER_S", 60.0)


class Locked(BaseHTTPRequestHandler):
    """A registry that asks for a login."""

    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="images"')
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Hostile(BaseHTTPRequestHandler):
    """A registry that sends without an end, or asks for a password where others can read it."""

    def do_GET(self) -> None:
        if "/endless/" in self.path:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b"x" * 65536)
            return
        self.send_response(401)
        realm = 'Bearer realm="http://127.evil.example/token",service="s"'
        self.send_header("WWW-Authenticate", realm)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


async def test_a_registry_cannot_fill_the_memory_or_get_a_password_in_the_clear() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host, login = f"127.0.0.1:{server.server_port}", RegistryLogin("ada", "password")
        with pytest.raises(RegistryError, match="sent more than"):
            await ImagePins().pin(f"{host}/endless/a:1")
        with pytest.raises(RegistryError, match=r"wants a token from http://127\.evil"):
            await ImagePins().pin(f"{host}/b:1", login)
        server.shutdown()


TRUST = """
kind: TrustPolicy
name: ml-images
namespaces: [ml, team-*]
registries: [registry.example.com, "127.0.0.1:*"]
require_digest: true
"""


async def test_a_tag_is_pinned_to_the_digest_that_it_has_now(registry: Registry) -> None:
    digest = registry.push("train", "v1")
    image = f"{registry.address}/train"
    assert await ImagePins().pin(f"{image}:v1") == f"{image}@{digest}"
    moved = registry.push("train", "v1", "two")
    assert await ImagePins().pin(f"{image}:v1") == f"{image}@{moved}"
    assert await ImagePins().pin(f"{image}@{digest}") == f"{image}@{digest}"
    printed = "registry.example.com/trainer@sha256:def456"
    with pytest.raises(RegistryError, match="invalid digest"):
        await ImagePins().pin(printed)
    with pytest.raises(RegistryError, match="has no image train:nothing"):
        await ImagePins().pin(f"{image}:nothing")
    unreachable = "127.0.0.1:1/train:v1"
    with pytest.raises(RegistryError, match=r"registry 127.0.0.1:1 cannot be reached"):
        await ImagePins().pin(unreachable)
    assert await ImagePins(is_required=False).pin(unreachable) == unreachable


async def test_only_an_image_that_the_key_has_signed_is_accepted(registry: Registry) -> None:
    release, other = SigningKey(), SigningKey()
    required = [RequiredSignature("ml-images", (release.pem,))]
    digest = registry.push("signed", "v1")
    image = f"{registry.address}/signed@{digest}"
    with pytest.raises(
        SignatureRefused, match=r"ml-images requires a signature, and image .* has no"
    ):
        await verify_image(image, required)
    registry.sign("signed", digest, other)
    with pytest.raises(SignatureRefused, match="is not signed by its key"):
        await verify_image(image, required)
    registry.sign("signed", digest, release)
    await verify_image(image, required)
    with pytest.raises(SignatureRefused, match="two"):
        await verify_image(image, [*required, RequiredSignature("two", (other.pem,))])
    changed = registry.push("signed", "v1", "changed after signing")
    with pytest.raises(SignatureRefused, match="has no signature"):
        await verify_image(f"{registry.address}/signed@{changed}", required)
    # A signature of another image under the tag of this one is worth nothing.
    registry.sign("signed", changed, release, says=digest)
    with pytest.raises(SignatureRefused, match="is not signed by its key"):
        await verify_image(f"{registry.address}/signed@{changed}", required)
    with pytest.raises(SignatureRefused, match="no digest"):
        await verify_image(f"{registry.address}/signed:v1", required)
    with pytest.raises(SignatureUnknown, match="cannot be read"):
        await verify_image(f"127.0.0.1:1/signed@{digest}", required)
    await verify_image("anything", [])


def job(image: str, namespace: str = "ml") -> object:
    return job_spec({"namespace": namespace, "roles": {"worker": {"image": image}}})


def test_a_trust_policy_names_itself_and_the_cure() -> None:
    policies = TrustPolicies(read_trust("trust.yaml", TRUST))
    good = f"registry.example.com/a@sha256:{'0' * 64}"
    policies.check(job(good))  # type: ignore[arg-type]
    policies.check(job("docker.io/a:1", "web"))  # type: ignore[arg-type]
    with pytest.raises(PolicyDenied, match=r"registry docker\.io is not one of"):
        policies.check(job("a", "team-b"))  # type: ignore[arg-type]
    with pytest.raises(PolicyDenied, match=r"no digest; write registry\.example\.com/a@sha256"):
        policies.check(job("registry.example.com/a:1"))  # type: ignore[arg-type]
    for wrong in ("kind: Queue\nname: a", "kind: TrustPolicy", TRUST + "signed_by: [key]", "{"):
        with pytest.raises(Invalid):
            read_trust("trust.yaml", wrong)


async def inputs_of(pins: ImagePins | None, key: SigningKey | None = None) -> JobInputs:
    """What jobs need from outside; with a key, images need its signature."""
    objects = ObjectRegistry(MemoryStore(clock=lambda: 0))
    policies = Authorizer(objects)
    if key is not None:
        indented = key.pem.strip().replace("\n", "\n  ")
        text = f"kind: TrustPolicy\nname: signed\nsigned_by:\n- |\n  {indented}\n"
        await objects.change([ClusterObject(KIND, "", "trust.yaml", text, 1)])
        assert not policies.has_policies, "trust policies alone deny nothing else"
    stored = StoredSecrets(objects, None)
    return JobInputs(SecretResolver(stored, [stored]), pins, policies)


async def test_a_plan_finds_what_a_submission_or_a_worker_would_refuse(registry: Registry) -> None:
    key = SigningKey()
    inputs = await inputs_of(ImagePins(), key)
    digest, host = registry.push("planned", "v1"), registry.address

    async def preview(image: str) -> ImagePreview:
        return await inputs.preview(job(image))  # type: ignore[arg-type]

    refused = await preview(f"{host}/planned:v1")
    assert refused.failure == (
        f"trust policy signed requires a signature, and image {host}/planned@{digest} has no"
        " signature"
    )
    registry.sign("planned", digest, key)
    for image in (f"{host}/planned:v1", f"{host}/planned@{digest}"):
        assert await preview(image) == ImagePreview()
    with pytest.raises(Invalid, match=r"has no image planned:v2"):
        await preview(f"{host}/planned:v2")
    missing = f"planned@sha256:{'0' * 64}"
    failure = (await preview(f"{host}/{missing}")).failure
    assert failure == (
        f"image {host}/{missing} cannot be used: registry {host} has no image {missing}"
    )
    [unchecked] = (await preview(f"127.0.0.1:1/planned@{digest}")).unchecked
    assert "was not checked: registry 127.0.0.1:1 cannot be reached" in str(unchecked)
    [unchecked] = (await (await inputs_of(None)).preview(job("a:1"))).unchecked  # type: ignore[arg-type]
    assert str(unchecked) == "image a:1 was not checked: the setting image_pinning is off"


async def test_a_pull_secret_that_is_missing_is_named_with_the_command_that_sets_it() -> None:
    inputs = await inputs_of(ImagePins())
    with ThreadingHTTPServer(("127.0.0.1", 0), Locked) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"127.0.0.1:{server.server_port}"
        role = {"image": f"{host}/train:1"}
        refused = (
            f"cannot be used: image {host}/train:1 cannot be pinned to a digest: registry {host}"
            " refuses access to train without a login (status 401); "
        )
        command = "set it with `phalanx secret set default username=NAME password=- --namespace ml`"
        for names, cure in (
            ([], "name a secret with a login in pull_secrets"),
            (["default"], f"pull secret default does not exist or has no login; {command}"),
            (["a", "b"], "pull secrets a and b do not exist or have no login; set it with"),
        ):
            spec = job_spec(
                {"namespace": "ml", "roles": {"worker": {**role, "pull_secrets": names}}}
            )
            with pytest.raises(Invalid) as caught:
                await inputs.pinned(spec)
            [problem] = caught.value.problems
            assert problem.message.startswith(refused + cure), problem.message
        server.shutdown()


async def test_a_submitted_job_is_pinned_and_a_gang_gets_digest_and_keys(
    registry: Registry,
) -> None:
    key = SigningKey()
    digest = registry.push("trainer", "v7")
    inputs = await inputs_of(ImagePins(), key)
    image = f"{registry.address}/trainer:v7"
    pinned = f"{registry.address}/trainer@{digest}"
    spec = job_spec({"roles": {"worker": {"image": image, "pull_secrets": ["default"]}}})
    assert await inputs.pinned(spec) == {image: pinned}
    resolved = await inputs.resolve(spec)
    assert resolved.images == {image: pinned}
    assert resolved.signatures == (RequiredSignature("signed", (key.pem,)),)
    with pytest.raises(Invalid, match=r"roles\.worker\.image"):
        await inputs.pinned(job_spec({"roles": {"worker": {"image": "127.0.0.1:1/a:b"}}}))


#: What cosign 2.4 has signed: `cosign sign --key cosign.key --tlog-upload=false`.
COSIGN_KEY = """\
-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEjYKEp4pOBmLhGTxbbaMBmaD2w6kR
efwmpvAA2im/5TgX7yB5gZHSS/sA+vY42Nyil81+ueTkGPrDLN5Dd+eUtQ==
-----END PUBLIC KEY-----
"""
COSIGN_DIGEST = "sha256:870681366a9cfd29b5bddced4f5af5433dbda3e761c36008f3ebe78e65a31461"
COSIGN_PAYLOAD = (
    b'{"critical":{"identity":{"docker-reference":"127.0.0.1:37467/aaa"},"image":'
    b'{"docker-manifest-digest":"' + COSIGN_DIGEST.encode() + b'"},'
    b'"type":"cosign container image signature"},"optional":null}'
)
COSIGN_SIGNATURE = (
    "MEUCIQDb3acOLcWlXtuEE24trn7wSulNGGf8DsVPp1XBSH+uTgIgHKhyHydP"
    "9DYQoRr5jqqXgVL2O81/KRIZPQEozDihbWs="
)


def test_a_signature_of_cosign_is_accepted() -> None:
    signature = base64.b64decode(COSIGN_SIGNATURE)
    key = read_key(COSIGN_KEY)
    assert is_signed(COSIGN_DIGEST, COSIGN_PAYLOAD, signature, [key])
    other = read_key(SigningKey().pem)
    assert not is_signed(COSIGN_DIGEST, COSIGN_PAYLOAD, signature, [other])
    changed = COSIGN_PAYLOAD.replace(b"null", b"{}")
    assert not is_signed(COSIGN_DIGEST, changed, signature, [key])
