"""Secrets: references, encryption, providers, masking, and what a worker is sent."""

from pathlib import Path

import pytest

from phalanx.agent.secret_files import NoSecretFiles, SecretFiles
from phalanx.agent.spawner.redaction import Redactor
from phalanx.core.errors import Conflict, Invalid
from phalanx.core.spec.native_form import native
from phalanx.core.spec.secret_references import SecretKey, secrets_in, with_secrets, without_secrets
from phalanx.core.spec.validation import job_spec
from phalanx.engine.gang_inputs import InputUnavailable
from phalanx.engine.object_registry import ObjectRegistry
from phalanx.secrets.encryption import CannotDecrypt, KeyFileError, KeyRing, add_key, load_keys
from phalanx.secrets.providers import SecretResolver, SecretsInEnvironment, SecretsInFiles
from phalanx.secrets.stored_secrets import StoredSecrets
from phalanx.store.memory import MemoryStore
from phalanx.wire.sync import TaskSecrets

KEY = SecretKey("training-data", "bucket")


def test_references_are_found_and_replaced_and_can_be_escaped() -> None:
    text = "${resources.training-data.bucket}/$${resources.a.b}/${HOME}/$(task.index)"
    assert secrets_in(text) == [KEY]
    assert with_secrets(text, lambda _: "x") == "x/${resources.a.b}/${HOME}/$(task.index)"
    assert with_secrets(without_secrets(text), lambda _: "x") == text


@pytest.mark.parametrize(
    "text", ["${resources.hub}", "a ${resources.Hub.key}", "${resources.hub.key", "${resources}"]
)
def test_what_begins_like_a_reference_and_is_none_is_refused(text: str) -> None:
    for field in ("env", "secret_files"):
        role = {"command": "true", field: {"name": text}}
        with pytest.raises(Invalid, match=rf"roles\.worker\.{field}\.name has \$") as refused:
            job_spec({"roles": {"worker": role}})
        assert "write ${resources.NAME.KEY}, or $${resources" in str(refused.value)
        role = {"command": "true", field: {"name": without_secrets(text)}}
        assert not job_spec({"roles": {"worker": role}}).roles[0].secrets
    assert with_secrets(without_secrets(text), lambda _: "x") == text
    assert without_secrets("${resources_dir} $(x)") == "${resources_dir} $(x)"


@pytest.mark.parametrize(
    "fields",
    [
        {"command": "train --token ${resources.hub.token}"},
        {"command": ["train", "${resources.hub.token}"]},
        {"image": "registry.example/train:1", "args": ["--token=${resources.hub.token}"]},
    ],
)
def test_a_secret_in_a_command_line_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(Invalid, match="refers to a secret, and every user of a machine can read"):
        job_spec({"roles": {"worker": fields}})
    spec = job_spec({"roles": {"worker": {"command": "echo ${resources} ${HOME}"}}})
    assert not spec.roles[0].secrets


def test_a_role_knows_its_secrets_and_needs_a_worker_that_can_get_them() -> None:
    role = {"command": "true", "env": {"A": "${resources.training-data.bucket}"}}
    spec = job_spec({"roles": {"worker": role}})
    assert spec.roles[0].secrets == (KEY,)
    assert spec.roles[0].node_selector == {"secrets": "delivered"}
    assert spec.is_prepared_first
    assert not spec.is_anonymous
    assert job_spec(native(spec)) == spec
    assert "node_selector" not in str(native(spec))


def test_a_value_is_encrypted_for_its_secret_and_its_key(tmp_path: Path) -> None:
    file = tmp_path / "keys" / "key"
    add_key(file)
    old = load_keys(file)
    sealed = old.encrypt(b"value", "ml/a")
    assert b"value" not in sealed.data
    add_key(file)
    new = load_keys(file)
    assert new.decrypt(sealed, "ml/a") == b"value"
    with pytest.raises(CannotDecrypt):
        new.decrypt(sealed, "ml/b")
    with pytest.raises(CannotDecrypt):
        old.decrypt(new.encrypt(b"value", "ml/a"), "ml/a")
    file.chmod(0o640)
    with pytest.raises(KeyFileError, match="accessible to other users"):
        load_keys(file)


async def test_a_secret_needs_the_key_that_it_was_encrypted_with() -> None:
    store = MemoryStore(clock=lambda: 0)
    registry = ObjectRegistry(store)
    await StoredSecrets(registry, KeyRing([b"1" * 32])).set("ml", KEY.name, {"bucket": "x"}, "ada")
    for secrets in (StoredSecrets(registry, KeyRing([b"2" * 32])), StoredSecrets(registry, None)):
        with pytest.raises(InputUnavailable):
            secrets.find("ml", KEY)
        with pytest.raises(Conflict):
            await secrets.set("ml", KEY.name, {"other": "y"}, "ada")
        assert secrets.find("web", KEY) is None
    assert secrets.list()[0].keys == ("bucket",)


async def test_the_first_provider_with_the_key_gives_its_value(tmp_path: Path) -> None:
    folder = tmp_path / "ml" / KEY.name
    folder.mkdir(parents=True)
    (folder / "bucket").write_text("from a file\n")
    variables = {"S_ML__TRAINING_DATA__BUCKET": "variable", "S_ML__TRAINING_DATA__KEY": "other"}
    stored = StoredSecrets(ObjectRegistry(MemoryStore(clock=lambda: 0)), None)
    environment = SecretsInEnvironment("S_", variables)
    resolver = SecretResolver(stored, [stored, SecretsInFiles(tmp_path), environment])
    other = SecretKey(KEY.name, "key")
    assert await resolver.resolve("ml", [KEY, other]) == {KEY: "from a file", other: "other"}
    # The variable of another namespace must not be reachable by another spelling.
    assert environment.find("ml--training", SecretKey("data", "bucket")) is None
    missing = "secret ml/training-data has no key nothing"
    with pytest.raises(InputUnavailable, match=missing):
        await resolver.resolve("ml", [SecretKey(KEY.name, "nothing")])


def test_values_are_masked_also_across_two_reads() -> None:
    redactor = Redactor(["s3://hidden", "abc", "line one\nline two"])
    written = redactor.mask(b"to s3://hid") + redactor.mask(b"den, s3://hi") + redactor.mask(b"!")
    written += redactor.mask(b"line two|abc|s3:") + redactor.rest()
    assert written == b"to [redacted], s3://hi![redacted]|abc|s3:"


def test_what_is_sent_to_a_worker_does_not_show_values_in_a_traceback() -> None:
    secrets = TaskSecrets({"A": "hidden"}, {"f": "hidden"}, ("hidden",))
    assert "hidden" not in repr(secrets)


def test_files_of_secrets_are_only_written_to_memory(tmp_path: Path) -> None:
    on_disk = SecretFiles(tmp_path, [Path(__file__).parent])
    with pytest.raises(NoSecretFiles, match="no tmpfs"):
        on_disk.write(("j-1.0", 1), {"a": "x"}, None)
    files = SecretFiles(tmp_path)
    folder = files.write(("j-1.0", 1), {"a": "x"}, None)
    assert (folder / "a").read_text() == "x"
    assert (folder / "a").stat().st_mode & 0o777 == 0o400
    again = SecretFiles(tmp_path)
    again.remove_except([("j-1.0", 1)])
    assert folder.exists()
    again.remove(("j-1.0", 1))
    assert not folder.parent.exists()
