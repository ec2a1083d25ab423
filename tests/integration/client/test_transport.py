"""Which server a request goes to, when it is retried, and which errors are raised."""

import re
from collections.abc import Callable

import pytest

from phalanx import Client
from phalanx.client import (
    ConflictError,
    DeniedError,
    InvalidError,
    NotFoundError,
    RefusedError,
    TooManyRequestsError,
    UnknownOutcomeError,
    UnreachableError,
    transport,
)
from tests.integration.client.misbehaving_server import CUT, MisbehavingServer, answer, refusal

JOB = {
    "id": "j-7kq2m4xd",
    "name": "j-7kq2m4xd",
    "namespace": "default",
    "queue": "default",
    "phase": "pending",
    "priority": 0,
    "size": 1,
    "created_at": "2026-01-01T00:00:00Z",
    "attempt": 0,
    "failures": 0,
    "warnings": [],
}
OK = answer(200, JOB)
TOKEN = "s3cret"  # noqa: S105
NOWHERE = "http://127.0.0.1:9"


def keys(server: MisbehavingServer) -> set[str]:
    return {
        found[1]
        for request in server.requests
        if (found := re.search(r"idempotency-key: (\S+)", request, re.IGNORECASE))
    }


@pytest.mark.parametrize(
    "trouble",
    [
        CUT,
        refusal(503, "no_leader"),
        refusal(503, "unavailable"),
        refusal(504, "outcome_unknown"),
        answer(502, "bad gateway"),
    ],
)
def test_a_submission_is_retried_with_the_same_key(trouble: bytes) -> None:
    with MisbehavingServer(trouble, trouble, OK) as server, Client(server.url) as client:
        assert client.submit(command="x").id == "j-7kq2m4xd"
        assert len(server.requests) == 3
        assert len(keys(server)) == 1


TOO_FAST = {"error": {"code": "too_many_requests", "message": "slower"}}


def test_a_limited_request_is_sent_again_after_the_time_that_the_server_names() -> None:
    limited = answer(429, TOO_FAST, Retry_After="0")
    with MisbehavingServer(limited, limited, OK) as server, Client(server.url) as client:
        assert client.submit(command="x").id == "j-7kq2m4xd"
        assert len(keys(server)) == 1


def test_a_limited_request_is_refused_at_once_if_the_pause_is_longer_than_the_patience() -> None:
    limited = answer(429, TOO_FAST, Retry_After="3600")
    with (
        MisbehavingServer(limited) as server,
        Client(server.url) as client,
        pytest.raises(TooManyRequestsError, match="slower"),
    ):
        client.submit(command="x")
    assert len(server.requests) == 1


CHANGES: list[Callable[[Client], object]] = [
    lambda client: client.retry("j-7kq2m4xd"),
    lambda client: client.requeue("j-7kq2m4xd"),
    lambda client: client.cancel("j-7kq2m4xd"),
    lambda client: client.set_priority("j-7kq2m4xd", 7),
    lambda client: client.remove_worker("w-1"),
    lambda client: client.delete_queue("lab"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_carries_a_key_and_is_repeated_with_it(
    change: Callable[[Client], object],
) -> None:
    with MisbehavingServer(CUT, OK) as server, Client(server.url) as client:
        change(client)
        assert len(server.requests) == 2
        assert len(keys(server)) == 1


@pytest.mark.parametrize("trouble", [CUT, refusal(504, "outcome_unknown"), answer(503, "proxy")])
def test_an_unknown_outcome_is_reported_as_such_with_the_key(
    trouble: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_SETTLE_S", 0.0)
    with (
        MisbehavingServer(trouble) as server,
        Client(server.url, patience_s=0) as client,
        pytest.raises(UnknownOutcomeError, match="it may have been made") as unknown,
    ):
        client.retry("j-7kq2m4xd")
    assert keys(server) == {unknown.value.key}


def test_an_outcome_that_was_unknown_once_stays_so_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "_SETTLE_S", 0.0)
    with (
        MisbehavingServer(CUT, refusal(503, "no_leader")) as server,
        Client(server.url, patience_s=0.3) as client,
        pytest.raises(UnknownOutcomeError),
    ):
        client.retry("j-7kq2m4xd")


def test_a_change_that_surely_was_not_made_is_reported_as_unreachable() -> None:
    with (
        MisbehavingServer(refusal(503, "no_leader")) as server,
        Client(server.url, patience_s=0) as client,
        pytest.raises(UnreachableError) as refused,
    ):
        client.retry("j-7kq2m4xd")
    assert not isinstance(refused.value, UnknownOutcomeError)


def test_a_redirect_to_the_leader_is_followed_with_token_and_query_and_remembered() -> None:
    with MisbehavingServer(answer(200, {"jobs": [], "cursor": None})) as leader:
        location = f"{leader.url}/jobs?ignored"
        with MisbehavingServer(answer(307, {}, Location=location)) as standby:
            with Client(standby.url, TOKEN) as client:
                assert list(client.jobs(queue="lab")) == []
                assert list(client.jobs(queue="lab")) == []
            assert len(standby.requests) == 1
        assert len(leader.requests) == 2
        assert all(f"Authorization: Bearer {TOKEN}" in each for each in leader.requests)
        assert all("queue=lab" in each.split("\r\n")[0] for each in leader.requests)


def test_standbys_that_redirect_to_each_other_are_unreachable() -> None:
    with MisbehavingServer(answer(307, {}, Location="http://x/")) as one:
        one._answers[:] = [answer(307, {}, Location=f"{one.url}/jobs")]
        told = pytest.raises(UnreachableError, match="stands by, and so does the server")
        with Client(one.url, patience_s=0) as client, told:
            client.workers()


def test_the_next_server_is_asked_if_one_does_not_answer() -> None:
    with MisbehavingServer(answer(200, [])) as server, Client([NOWHERE, server.url]) as client:
        assert client.workers() == []
        assert client.workers() == []


def test_after_patience_s_the_error_names_the_servers() -> None:
    told = pytest.raises(UnreachableError, match=re.escape(NOWHERE))
    with Client(NOWHERE, patience_s=0.3) as client, told:
        client.workers()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidError),
        (401, DeniedError),
        (403, DeniedError),
        (404, NotFoundError),
        (409, ConflictError),
        (418, RefusedError),
    ],
)
def test_a_refusal_raises_the_error_of_its_status_with_every_detail(
    status: int, kind: type[RefusedError]
) -> None:
    body = {
        "error": {"code": "c", "message": "m", "details": [{"path": "p", "message": "is wrong"}]}
    }
    with (
        MisbehavingServer(answer(status, body, X_Request_ID="r-7")) as server,
        Client(server.url) as client,
        pytest.raises(kind) as refused,
    ):
        client.get("j-7kq2m4xd")
    error = refused.value
    assert (error.status, error.code, str(error), error.request_id) == (status, "c", "m", "r-7")
    assert [(each.path, each.message) for each in error.details] == [("p", "is wrong")]


def test_an_error_of_a_proxy_is_reported_with_its_status() -> None:
    with (
        MisbehavingServer(answer(502, "bad gateway")) as server,
        Client(server.url) as client,
        pytest.raises(RefusedError, match="answered 502"),
    ):
        client.get("j-7kq2m4xd")


def test_a_name_is_quoted_in_the_path() -> None:
    with MisbehavingServer(refusal(404, "not_found")) as server, Client(server.url) as client:
        with pytest.raises(NotFoundError):
            client.queue("jobs?x=1")
        assert server.requests[0].startswith("GET /queues/jobs%3Fx%3D1 ")


@pytest.mark.parametrize("name", ["ml/pretrain", "", ".."])
def test_a_name_that_no_path_can_have_is_refused_without_a_request(name: str) -> None:
    with MisbehavingServer() as server, Client(server.url) as client:
        with pytest.raises(InvalidError, match="a name is not empty and has no '/'") as refused:
            client.queue(name)
        assert [each.path for each in refused.value.details] == ["queue"]
        assert server.requests == []


def text(*lines: str, is_whole: bool) -> bytes:
    """A stream of text that ends well, or in the middle."""
    content = "".join(f"{line}\n" for line in lines).encode()
    chunks = b"%x\r\n%s\r\n" % (len(content), content) + (b"0\r\n\r\n" if is_whole else b"")
    return b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunks


def test_following_output_continues_after_a_broken_connection() -> None:
    ended = answer(200, JOB | {"phase": "done", "finished_at": "2026-01-01T00:00:01Z"})
    broken = text("a/0 | one", "b/1 | eins", is_whole=False)
    whole = text("b/1 | eins", "b/1 | zwei", "a/0 | one", is_whole=True)
    with MisbehavingServer(broken, ended, whole, ended) as server, Client(server.url) as client:
        lines = list(client.logs("j-7kq2m4xd", follow=True))
    assert lines == ["a/0 | one", "b/1 | eins", "b/1 | zwei"]


def test_reading_output_raises_if_the_connection_breaks() -> None:
    with MisbehavingServer(text("one", is_whole=False)) as server, Client(server.url) as client:
        lines = client.logs("j-7kq2m4xd")
        assert next(lines) == "one"
        with pytest.raises(UnreachableError, match="the connection broke"):
            next(lines)


def test_a_client_knows_for_how_long_no_server_has_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[bool] = []
    monkeypatch.setattr(transport, "SILENCE_S", 0.0)
    with MisbehavingServer(OK) as server, Client([NOWHERE], patience_s=0.3) as client:
        client.await_takeover(0, waits.append)
        assert client.silent_s == 0
        with pytest.raises(UnreachableError):
            client.hold("j-7kq2m4xd")
        assert client.silent_s > 0
        assert waits == [False]
        client._operations._transport.urls = (server.url,)
        client.hold("j-7kq2m4xd")
        assert client.silent_s == 0


def test_a_standby_that_redirects_to_a_dead_leader_is_waited_for() -> None:
    moved = answer(307, {}, Location=f"{NOWHERE}/jobs/j-7kq2m4xd/hold")
    waits: list[bool] = []
    with (
        MisbehavingServer(moved, moved, OK) as server,
        Client(server.url, patience_s=0) as client,
    ):
        client.await_takeover(60, waits.append)
        assert client.hold("j-7kq2m4xd").id == "j-7kq2m4xd"
    assert (len(server.requests), waits) == (3, [True])
