"""A worker joins and renews its credential, whatever answers are lost and whenever it crashes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from phalanx.agent.credential import CredentialError, CredentialFile, WorkerCredential
from phalanx.agent.link.http_client import HttpReply
from phalanx.agent.link.leader_client import CredentialRefused, LeaderClient, Unreachable
from phalanx.agent.link.membership import JoinRefused, Membership
from phalanx.sim.loop import run_virtually


class Server(LeaderClient):
    """Takes the digests that it is sent; its answers can get lost."""

    def __init__(self) -> None:
        super().__init__(("http://nowhere",), lambda: None)
        self.digests: list[str] = []
        self.loses_answers = False
        self.status = 200

    async def call(self, method: str, path: str, body: Any = b"", **_: Any) -> HttpReply:
        self.digests.append(json.loads(body)["credential"])
        if self.loses_answers:
            raise Unreachable("no answer")
        reply = {"worker": "w", "renew_after": 10.0}
        error = {"error": {"code": "conflict", "message": "taken"}}
        return HttpReply(
            self.status, {}, json.dumps(reply if self.status == 200 else error).encode()
        )


def membership(folder: Path, token: str | None = "join") -> Membership:  # noqa: S107
    return Membership("w", CredentialFile(folder / "credential"), lambda: token)


def digest(secret: str | None) -> str:
    return hashlib.sha256((secret or "").encode()).hexdigest()


def stored(folder: Path) -> WorkerCredential:
    credential = CredentialFile(folder / "credential").load("w")
    assert credential is not None
    return credential


def test_a_join_whose_answer_was_lost_is_repeated_with_the_same_secret(tmp_path: Path) -> None:
    async def story() -> None:
        server = Server()
        server.loses_answers = True
        for _ in range(2):  # a new process each time
            worker = membership(tmp_path)
            with pytest.raises(Unreachable):
                await worker.ensure(server)
            assert worker.bearer() is None
        server.loses_answers = False
        worker = membership(tmp_path)
        await worker.ensure(server)
        await worker.ensure(server)
        assert len(server.digests) == 3
        assert set(server.digests) == {digest(worker.bearer())}

    run_virtually(story())
    assert (tmp_path / "credential").stat().st_mode & 0o777 == 0o600
    assert membership(tmp_path, None).bearer() == stored(tmp_path).secret


def test_a_renewal_whose_answer_was_lost_keeps_the_previous_secret_in_use(tmp_path: Path) -> None:
    async def story() -> None:
        server = Server()
        worker = membership(tmp_path)
        await worker.ensure(server)
        first = worker.bearer()
        server.loses_answers = True
        for _ in range(2):
            with pytest.raises(Unreachable):
                await worker.renew(server)
            worker = membership(tmp_path, None)
            assert worker.bearer() == first
        server.loses_answers = False
        await worker.renew(server)
        assert worker.bearer() not in (None, first)
        assert server.digests[1:] == [digest(worker.bearer())] * 3

    run_virtually(story())


def test_a_full_disk_changes_no_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        server = Server()
        worker = membership(tmp_path)
        await worker.ensure(server)
        before = (worker.bearer(), stored(tmp_path))
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", _full)
            with pytest.raises(OSError, match="No space"):
                await worker.renew(server)
        assert (worker.bearer(), stored(tmp_path)) == before
        assert len(server.digests) == 1

    run_virtually(story())


def _full(_: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_refusal_says_what_to_do(tmp_path: Path) -> None:
    async def story() -> None:
        server = Server()
        server.status = 409
        worker = membership(tmp_path)
        with pytest.raises(JoinRefused, match="cannot join the cluster: taken"):
            await worker.ensure(server)
        server.status = 200
        await worker.ensure(server)
        unknown = worker.refused(CredentialRefused("the token is unknown"))
        assert str(tmp_path / "credential") in unknown
        assert "--token-file" in unknown
        await worker.ensure(server)  # joins again, with the same secret
        assert set(server.digests) == {digest(worker.bearer())}
        assert "--token-file" in membership(tmp_path / "none", None).refused(
            CredentialRefused("a token is required")
        )

    run_virtually(story())


def test_a_credential_of_another_worker_is_refused(tmp_path: Path) -> None:
    file = CredentialFile(tmp_path / "credential")
    file.save(WorkerCredential("other", "secret"))
    with pytest.raises(CredentialError, match="the credential of worker other"):
        membership(tmp_path)
    file.path.write_text("{")
    with pytest.raises(CredentialError, match="remove it"):
        membership(tmp_path)
