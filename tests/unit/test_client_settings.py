"""Which server a client speaks to: arguments, then variables, then the file, then the default."""

from pathlib import Path

import pytest

from phalanx.client import settings
from phalanx.server.options import BY_NAME


def test_the_default_is_where_a_server_listens() -> None:
    host, port = BY_NAME["host"].default, BY_NAME["port"].default
    assert f"http://{host}:{port}" == settings.DEFAULT_SERVER
    found = settings.load(environ={"XDG_CONFIG_HOME": "/nonexistent"})
    assert found[:4] == ((settings.DEFAULT_SERVER,), None, True, None)


def at_home(folder: Path, text: str, **more: str) -> dict[str, str]:
    (folder / "phalanx").mkdir(exist_ok=True)
    (folder / "phalanx" / "client.toml").write_text(text)
    return {"XDG_CONFIG_HOME": str(folder)} | more


def test_what_is_nearer_counts(tmp_path: Path) -> None:
    file = 'server = "http://file/"\ntoken = "file"\n'
    found = settings.load(environ=at_home(tmp_path, file))
    assert found[:3] == (("http://file",), "file", False)
    environ = at_home(tmp_path, file, PHALANX_SERVER="http://a, https://b", PHALANX_TOKEN="v")  # noqa: S106
    assert settings.load(environ=environ)[:3] == (("http://a", "https://b"), "v", False)
    assert settings.load(["http://x"], "arg", environ)[:3] == (("http://x",), "arg", False)


def test_a_token_can_be_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("phx_1\n")
    environ = at_home(tmp_path, "", PHALANX_TOKEN="v")  # noqa: S106
    assert settings.load(environ=environ, token_file=tmp_path / "token").token == "phx_1"  # noqa: S105
    environ["PHALANX_TOKEN_FILE"] = str(tmp_path / "token")
    assert settings.load(environ=environ).token == "phx_1"  # noqa: S105
    for text, words in (("\n", "is empty"), ("", "cannot read")):
        (tmp_path / "token").unlink()
        if text:
            (tmp_path / "token").write_text(text)
        with pytest.raises(ValueError, match=f"--token-file: .*{words}"):
            settings.load(environ=environ)


def test_a_token_of_the_file_is_sent_to_the_servers_of_the_file_alone(tmp_path: Path) -> None:
    environ = at_home(tmp_path, 'server = ["https://a", "https://b"]\ntoken = "file"\n')
    assert settings.load("https://b", environ=environ).token == "file"  # noqa: S105
    assert settings.load("https://evil.example", environ=environ).token is None
    assert settings.load("https://c", environ=at_home(tmp_path, 'token = "any"')).token == "any"  # noqa: S105


PIN, OTHER = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


def test_a_pin_of_the_file_is_for_the_servers_of_the_file(tmp_path: Path) -> None:
    environ = at_home(tmp_path, f'server = ["https://a", "https://b"]\nfingerprint = "{PIN}"\n')
    assert settings.load(environ=environ).fingerprint == PIN
    assert settings.load("https://b", environ=environ).fingerprint == PIN
    assert settings.load("https://c", environ=environ).fingerprint is None
    assert settings.load("https://c", environ=environ, fingerprint=OTHER).fingerprint == OTHER
    environ["PHALANX_FINGERPRINT"] = OTHER.upper()
    assert settings.load(environ=environ).fingerprint == OTHER


def test_a_pin_without_tls_or_in_another_form_is_refused(tmp_path: Path) -> None:
    environ = at_home(tmp_path, "")
    with pytest.raises(ValueError, match="a fingerprint needs TLS, and http://a has none"):
        settings.load("http://a", environ=environ, fingerprint=PIN)
    with pytest.raises(ValueError, match="'sha256:ab' is not a fingerprint"):
        settings.load("https://a", environ=environ, fingerprint="sha256:ab")


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("server = 7", "server is 7; write it like"),
        ('server = "host"', "server is 'host'; write it like"),
        ("server = [7]", "server is 7; write it like"),
        ("token = 7", "token is not a string"),
        ("fingerprint = 7", "fingerprint is not a string"),
        ("= 7", "client.toml is not valid TOML at line 1, column 1; correct it"),
    ],
)
def test_a_file_that_is_wrong_is_said_with_its_name(tmp_path: Path, file: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"client\.toml") as refused:
        settings.load(environ=at_home(tmp_path, file))
    assert words in str(refused.value)


@pytest.mark.parametrize("token", ["é", "phx_1\nX: y", "a  b", "\udcff"])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(tmp_path: Path, token: str) -> None:
    environ = at_home(tmp_path, "", PHALANX_TOKEN=token)
    words = "the token in PHALANX_TOKEN has characters that a token cannot have"
    with pytest.raises(ValueError, match=words) as caught:
        settings.load(environ=environ)
    assert token not in str(caught.value)
    with pytest.raises(ValueError, match="the token has characters"):
        settings.load(token=token, environ=at_home(tmp_path, ""))
