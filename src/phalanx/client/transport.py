"""Sending requests to the leader: finding it, following redirects, and retrying safely.

A request that changes something carries an idempotency key, the same in every attempt, so that it
is carried out once however often it is sent. How a request goes over the network, and how a pause
passes, is the matter of an `Http`: one blocks, the other is for asyncio.
"""

import errno
import random
import re
import ssl
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from phalanx.client.errors import (
    RefusedError,
    UnknownOutcomeError,
    UnreachableError,
    UntrustedError,
    refused,
)
from phalanx.tls.pinning import FingerprintMismatch, Pin
from phalanx.tls.problems import tls_problem
from phalanx.wire.errors import ErrorBody, ErrorInfo

T = TypeVar("T")
OnWait = Callable[[bool], None]

KEY_HEADER = "Idempotency-Key"
#: How long a change whose outcome is unknown is repeated at least: until a standby has taken over.
_SETTLE_S = 30.0
#: Statuses of servers and proxies that do not know whether the request was carried out.
_UNKNOWN = (502, 504)
#: The code of an error that is not in the form of our servers.
_FOREIGN = "unknown"
_READS = ("GET", "HEAD")

#: A standby may redirect to a server that has just lost the lead.
_MAX_REDIRECTS = 3
#: A server that restarts, or a connection that breaks, is silent for less.
SILENCE_S = 2.0
_RETRY_PAUSE_S, _MAX_RETRY_PAUSE_S = 0.1, 2.0

_decode_error = msgspec.json.Decoder(ErrorBody).decode


class ApiRequest(NamedTuple):
    method: str
    path: str
    params: Mapping[str, Any] = {}
    content: bytes | None = None
    headers: Mapping[str, str] = {}
    #: Whether it can be repeated when its outcome is unknown: because of its key, or by nature.
    is_repeatable: bool = True
    streamed: bool = False
    #: The longest silence of a stream; the server sends a comment every few seconds.
    read_timeout_s: float | None = 60.0


class _TryNextServerError(Exception):
    """This server cannot serve the request now; the message says why."""

    def __init__(self, why: str, *, may_be_done: bool = False, stands_by: bool = False) -> None:
        self.may_be_done = may_be_done  #: the request may have been carried out
        self.stands_by = stands_by  #: it is a standby, and another server will lead soon
        super().__init__(why)


class _TryLaterError(Exception):
    """The leader refuses the request now and would take it after a pause."""

    def __init__(self, refusal: RefusedError, after_s: float) -> None:
        self.refusal = refusal
        self.after_s = after_s
        super().__init__(str(refusal))


class Http(Protocol):
    """Requests and pauses, either of which may block."""

    async def send(
        self, request: httpx.Request, trusted: ssl.SSLContext, *, streamed: bool
    ) -> httpx.Response:
        """The response, with its body unless it is streamed. Connections that trust the same
        authorities are used again."""

    def chunks(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        """The body of a stream, as it arrives."""

    async def end(self, response: httpx.Response) -> None:
        """Close a stream."""

    async def pause(self, seconds: float) -> None: ...

    async def blocking(self, function: Callable[[], T]) -> T:
        """The result of a function that blocks for a moment."""

    async def close(self) -> None: ...


class Transport:
    """The servers of one cluster. Remembers which of them answered last."""

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        http: Http,
        urls: tuple[str, ...],
        token: str | None,
        timeout_s: float,
        patience_s: float,
        pin: Pin | None = None,
    ) -> None:
        self.urls = urls
        self.patience_s = patience_s
        self.failovers = 0  #: how often a server could not serve a request
        #: How long a request waits for a standby to take over, if that is longer.
        self.takeover_s = 0.0
        #: Called once for a request that waits, with whether it waits for a standby.
        self.on_wait: OnWait = _ignore
        self._silent_since: float | None = None
        self._leader = urls[0]
        self._headers = {"Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._timeout_s = timeout_s
        self._pin = pin
        self._http = http
        #: The authorities that are trusted, by whether a server speaks TLS.
        self._trusted: dict[bool, ssl.SSLContext] = {}

    @property
    def silent_s(self) -> float:
        """For how long no server has served a request; 0 if the last one was served."""
        return 0.0 if self._silent_since is None else time.monotonic() - self._silent_since

    async def close(self) -> None:
        await self._http.close()

    async def pause(self, seconds: float) -> None:
        await self._http.pause(seconds)

    async def call(self, kind: type[T], request: ApiRequest) -> T:
        """The leader's response, decoded. Raises UnreachableError or RefusedError."""
        response = await self.send(request)
        try:
            return msgspec.json.decode(response.content, type=kind)
        except msgspec.DecodeError:
            origin = f"{response.url.scheme}://{response.url.netloc.decode()}"
            raise UnreachableError(
                f"{origin} answered {request.method} {request.path} with something else than"
                " expected; it is not a Phalanx server, or one of another version"
            ) from None

    async def send(self, request: ApiRequest) -> httpx.Response:
        """The leader's response. Raises UnreachableError or RefusedError."""
        request = _with_key(request)
        began, pause, may_be_done = time.monotonic(), _RETRY_PAUSE_S, False
        is_told = False
        while True:
            problems: dict[str, str] = {}
            stands_by = False
            for url in dict.fromkeys((self._leader, *self.urls)):
                try:
                    return await self._send_to(url, request)
                except _TryLaterError as error:
                    if time.monotonic() + error.after_s > began + self.patience_s:
                        raise error.refusal from None
                    await self._http.pause(error.after_s)
                    break
                except _TryNextServerError as error:
                    problems[url] = str(error)
                    self.failovers += 1
                    stands_by |= error.stands_by
                    may_be_done |= error.may_be_done and request.method not in _READS
                    if may_be_done and not request.is_repeatable:
                        raise _no_answer(request, problems, may_be_done=True) from None
            else:
                patience_s = max(self.patience_s, _SETTLE_S) if may_be_done else self.patience_s
                if stands_by:
                    patience_s = max(patience_s, self.takeover_s)
                if self._silent_since is None:
                    self._silent_since = time.monotonic()
                if time.monotonic() + pause > began + patience_s:
                    raise _no_answer(request, problems, may_be_done=may_be_done)
                if not is_told and (stands_by or time.monotonic() > began + SILENCE_S):
                    self.on_wait(stands_by)
                    is_told = True
                await self._http.pause(pause * random.uniform(0.5, 1.0))  # noqa: S311
                pause = min(2 * pause, _MAX_RETRY_PAUSE_S)

    async def _send_to(self, url: str, request: ApiRequest) -> httpx.Response:
        """The response of a server, or of the leader that it redirects to."""
        for hop in range(_MAX_REDIRECTS):
            try:
                response = await self._exchange(url, request)
            except _TryNextServerError as error:
                error.stands_by = hop > 0  # a standby has redirected to this server
                raise
            if response.status_code != 307:
                break
            location = urlsplit(response.headers.get("Location", ""))
            if not location.netloc:
                raise _TryNextServerError("redirects without an address")
            if url.startswith("https:") and location.scheme != "https":
                raise _TryNextServerError("redirects to an address without TLS")
            url = f"{location.scheme}://{location.netloc}"
        else:
            why = "stands by, and so does the server that it redirects to"
            raise _TryNextServerError(why, stands_by=True)
        is_unknown = response.status_code in _UNKNOWN and request.method not in _READS
        if response.status_code == 429 and _retry_after_s(response) is not None:
            self._leader = url
            self._silent_since = None
            raise _TryLaterError(_refusal(response), _retry_after_s(response) or 0.0)
        if response.status_code in (429, 503) or is_unknown:
            info = _error_info(response)
            # Our servers answer these only if nothing was changed; a proxy may do so at any time.
            raise _TryNextServerError(
                info.message,
                may_be_done=is_unknown or info.code == _FOREIGN,
                stands_by=info.code == "no_leader",
            )
        self._leader = url
        self._silent_since = None
        if response.status_code >= 300:
            raise _refusal(response)
        return response

    async def _exchange(self, url: str, request: ApiRequest) -> httpx.Response:
        read_timeout_s = request.read_timeout_s if request.streamed else self._timeout_s
        trusted = await self._context(is_tls=url.startswith("https:") or self._pin is not None)
        http_request = httpx.Request(
            request.method,
            url + request.path,
            params={name: value for name, value in request.params.items() if value is not None},
            content=request.content,
            headers={**self._headers, **request.headers},
            extensions={
                "timeout": httpx.Timeout(self._timeout_s, read=read_timeout_s).as_dict(),
            },
        )
        try:
            return await self._http.send(http_request, trusted, streamed=request.streamed)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            pinned = self._pin.fingerprint if self._pin else ""
            raise _TryNextServerError(tls_problem(error, pinned) or describe(error)) from None
        except httpx.TransportError as error:
            raise _TryNextServerError(describe(error), may_be_done=True) from None

    async def lines(self, request: ApiRequest) -> AsyncGenerator[str, None]:
        """The lines of a stream as they arrive. Only a line feed ends a line: the other line breaks
        of Unicode belong to the task's output."""
        response = await self.send(request)
        rest = b""
        try:
            async with aclosing(self._http.chunks(response)) as chunks:
                async for data in chunks:
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        yield line.decode(errors="replace")
            if rest:
                yield rest.decode(errors="replace")
        finally:
            await self._http.end(response)

    async def _context(self, *, is_tls: bool) -> ssl.SSLContext:
        """The authorities to trust. A pinned one is fetched at the first contact."""
        if is_tls not in self._trusted:
            # Without TLS no authorities are loaded, which takes longer than most requests.
            self._trusted[is_tls] = (
                await self._http.blocking(self._load_trusted)
                if is_tls
                else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            )
        return self._trusted[is_tls]

    def _load_trusted(self) -> ssl.SSLContext:
        try:
            if self._pin is None:
                return httpx.create_ssl_context()
            return ssl.create_default_context(cadata=self._pin.trusted(self.urls))
        except FingerprintMismatch as error:
            raise UntrustedError(str(error)) from None
        except OSError as error:
            raise _TryNextServerError(str(error)) from None


def _ignore(stands_by: bool) -> None:
    pass


def _with_key(request: ApiRequest) -> ApiRequest:
    """The request, with an idempotency key if it may change something."""
    if request.method in _READS or KEY_HEADER in request.headers:
        return request
    return request._replace(headers={**request.headers, KEY_HEADER: uuid.uuid4().hex})


def _no_answer(
    request: ApiRequest, problems: Mapping[str, str], *, may_be_done: bool
) -> UnreachableError:
    listed = "; ".join(f"{url}: {problem}" for url, problem in problems.items())
    if not may_be_done:
        return UnreachableError(f"no server answers ({listed})")
    key = request.headers[KEY_HEADER]
    cure = f", or repeat it with the idempotency key {key}" if request.is_repeatable else ""
    return UnknownOutcomeError(
        f"no server confirmed the change ({listed}); it may have been made: check before you repeat"
        f" it{cure}",
        key,
    )


def describe(error: httpx.TransportError) -> str:
    """What happened to a connection, in a few words."""
    if isinstance(error, httpx.TimeoutException):
        return "timed out"
    if isinstance(error, httpx.RemoteProtocolError):
        return "connection closed"
    number = re.match(r"\[Errno (-?\d+)\] (.*)", str(error))
    if number is None:
        return "connection failed"
    if int(number[1]) == errno.ECONNREFUSED:
        return "connection refused"
    return number[2].rstrip(".").lower()


def _retry_after_s(response: httpx.Response) -> float | None:
    """How long a server that limits this caller wants it to wait; None if it does not say."""
    given = response.headers.get("Retry-After", "")
    is_ours = _error_info(response).code != _FOREIGN
    is_number = given.isascii() and given.isdecimal() and len(given) < 10
    return float(given) if is_ours and is_number else None


def _refusal(response: httpx.Response) -> RefusedError:
    request_id = response.headers.get("X-Request-ID", "")
    return refused(response.status_code, _error_info(response), request_id)


def _error_info(response: httpx.Response) -> ErrorInfo:
    """The error of a response. A body in another form comes from a proxy in between."""
    try:
        return _decode_error(response.content).error
    except msgspec.DecodeError:
        return ErrorInfo(_FOREIGN, f"{response.url} answered {response.status_code}")
