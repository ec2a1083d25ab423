"""`phalanx token` over the API of a server."""

import pytest

from tests.acceptance.terminal import Terminal


def test_a_token_is_created_used_rotated_and_revoked(terminal: Terminal) -> None:
    created = terminal.type("token", "create", "ada", "--namespace", "ml", "--expires", "90d")
    assert created.status == 0, created
    first = created.out.strip()
    assert terminal.type("jobs", PHALANX_TOKEN=first).status == 0
    denied = terminal.type("token", "list", PHALANX_TOKEN=first)
    assert denied.status != 0
    assert "the token ada has the role user; this requires admin" in denied.err
    rotated = terminal.type("token", "rotate", "ada").out.strip()
    for secret, status in ((first, 0), (rotated, 0)):
        assert terminal.type("jobs", PHALANX_TOKEN=secret).status == status
    assert terminal.type("jobs", PHALANX_TOKEN=first).status != 0
    heading, line = terminal.type("token", "list").out.splitlines()
    assert heading.split() == [
        *("TOKEN", "ROLE", "FOR", "JOINS", "LAST", "USE", "EXPIRES", "SECRET")
    ]
    assert line.split()[:4] == ["ada", "user", "ml", "-"]
    assert f"{rotated[:10]}…" in line
    assert terminal.type("token", "revoke", "ada").status == 0
    refused = terminal.type("jobs", PHALANX_TOKEN=rotated)
    assert "the token is unknown; it may have been revoked" in refused.err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("create", "w", "--role", "worker"), "workers is missing"),
        (("create", "x", "--role", "join", "--expires", "soon"), 'expires is "soon"'),
        (("create", "local", "--role", "admin"), "requests without a token"),
        (("rotate", "nobody"), "there is no token nobody"),
        (("revoke", "worker:nobody"), "there is no token worker:nobody"),
    ],
)
def test_a_refused_command_says_what_to_do(
    terminal: Terminal, words: tuple[str, ...], error: str
) -> None:
    said = terminal.type("token", *words)
    assert said.status != 0
    assert error in said.err, said.err
