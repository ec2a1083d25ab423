"""Sending requests to the leader: finding it, following redirects, and retrying safely."""

import errno
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from phalanx.client.errors import (
    UnknownOutcomeError,
    UnreachableError,
    UntrustedError,
    refused,
)
from phalanx.tls.pinning import FingerprintMismatch, Pin
from phalanx.tls.problems import TLS_EXPECTED, tls_problem
from phalanx.wire.errors import ErrorBody, ErrorInfo

T = TypeVar("T")

#: A standby may redirect to a server that has just lost the lead.
_MAX_REDIRECTS = 3
_RETRY_PAUSE_S, _MAX_RETRY_PAUSE_S = 0.1, 2.0

_decode_error = msgspec.json.Decoder(ErrorBody).decode


class ApiRequest(NamedTuple):
    method: str
    path: str
    params: Mapping[str, Any] = {}
    content: bytes | None = None
    headers: Mapping[str, str] = {}
    is_idempotent: bool = True  #: whether sending it twice has the same effect as once
    streamed: bool = False
    #: The longest silence of a stream; the server sends a comment every few seconds.
    read_timeout_s: float | None = 60.0


class _TryNextServerError(Exception):
    """This server cannot serve the request now; the message says why."""


class Transport:
    """The servers of one cluster. Remembers which of them answered last."""

    def __init__(
        self,
        urls: tuple[str, ...],
        token: str | None,
        timeout_s: float,
        patience_s: float,
        pin: Pin | None = None,
    ) -> None:
        self.urls = urls
        self.patience_s = patience_s
        self.failovers = 0  #: how often a server could not serve a request
        self._leader = urls[0]
        self._headers = {"Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._timeout_s = timeout_s
        self._pin = pin
        self._http: httpx.Client | None = None

    def close(self) -> None:
        if self._http is not None:
            self._http.close()

    def call(self, kind: type[T], request: ApiRequest) -> T:
        """The leader's response, decoded. Raises UnreachableError or RefusedError."""
        response = self.send(request)
        try:
            return msgspec.json.decode(response.content, type=kind)
        except msgspec.DecodeError:
            origin = f"{response.url.scheme}://{response.url.netloc.decode()}"
            raise UnreachableError(
                f"{origin} answered {request.method} {request.path} with something else than"
                " expected; it is not a Phalanx server, or one of another version"
            ) from None

    def send(self, request: ApiRequest) -> httpx.Response:
        """The leader's response. Raises UnreachableError or RefusedError."""
        deadline = time.monotonic() + self.patience_s
        pause = _RETRY_PAUSE_S
        while True:
            problems: dict[str, str] = {}
            for url in dict.fromkeys((self._leader, *self.urls)):
                try:
                    return self._send_to(url, request)
                except _TryNextServerError as error:
                    problems[url] = str(error)
                    self.failovers += 1
            if time.monotonic() + pause > deadline:
                listed = "; ".join(f"{url}: {problem}" for url, problem in problems.items())
                raise UnreachableError(f"no server answers ({listed})")
            time.sleep(pause)
            pause = min(2 * pause, _MAX_RETRY_PAUSE_S)

    def _send_to(self, url: str, request: ApiRequest) -> httpx.Response:
        """The response of a server, or of the leader that it redirects to."""
        for _ in range(_MAX_REDIRECTS):
            response = self._exchange(url, request)
            if response.status_code != 307:
                break
            location = urlsplit(response.headers.get("Location", ""))
            if not location.netloc:
                raise _TryNextServerError("redirects without an address")
            if url.startswith("https:") and location.scheme != "https":
                raise _TryNextServerError("redirects to an address without TLS")
            url = f"{location.scheme}://{location.netloc}"
        else:
            raise _TryNextServerError("stands by, and so does the server that it redirects to")
        if response.status_code == 503 and (
            request.is_idempotent or _error_info(response).code == "no_leader"
        ):
            raise _TryNextServerError(_error_info(response).message)
        self._leader = url
        if response.status_code >= 300:
            request_id = response.headers.get("X-Request-ID", "")
            raise refused(response.status_code, _error_info(response), request_id)
        return response

    def _exchange(self, url: str, request: ApiRequest) -> httpx.Response:
        read_timeout_s = request.read_timeout_s if request.streamed else self._timeout_s
        http = self._connected()
        http_request = http.build_request(
            request.method,
            url + request.path,
            params={name: value for name, value in request.params.items() if value is not None},
            content=request.content,
            headers=dict(request.headers),
            timeout=httpx.Timeout(self._timeout_s, read=read_timeout_s),
        )
        try:
            response = http.send(http_request, stream=request.streamed)
            if response.status_code >= 300:
                response.read()
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            pinned = self._pin.fingerprint if self._pin else ""
            raise _TryNextServerError(tls_problem(error, pinned) or describe(error)) from None
        except httpx.TransportError as error:
            if request.is_idempotent:
                raise _TryNextServerError(describe(error)) from None
            raise UnknownOutcomeError(
                f"{url} did not answer ({describe(error)}); the request may have been carried out:"
                " check before you repeat it"
            ) from None
        return response

    def _connected(self) -> httpx.Client:
        """The HTTP client. A pinned authority is fetched at the first contact."""
        if self._http is not None:
            return self._http
        try:
            trusted = self._pin is None or ssl.create_default_context(
                cadata=self._pin.trusted(self.urls)
            )
        except FingerprintMismatch as error:
            raise UntrustedError(str(error)) from None
        except OSError as error:
            raise _TryNextServerError(str(error)) from None
        self._http = httpx.Client(headers=self._headers, verify=trusted)
        return self._http


def describe(error: httpx.TransportError) -> str:
    """What happened to a connection, in a few words."""
    if isinstance(error, httpx.TimeoutException):
        return "timed out"
    if isinstance(error, httpx.RemoteProtocolError):
        if error.request.url.scheme == "http":
            return f"connection closed; {TLS_EXPECTED}"
        return "connection closed"
    number = re.match(r"\[Errno (-?\d+)\] (.*)", str(error))
    if number is None:
        return "connection failed"
    if int(number[1]) == errno.ECONNREFUSED:
        return "connection refused"
    return number[2].rstrip(".").lower()


def lines_of(response: httpx.Response) -> Iterator[str]:
    """The lines of a stream as they arrive. Only a line feed ends a line: the other line breaks of
    Unicode belong to the task's output."""
    rest = b""
    for data in response.iter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def _error_info(response: httpx.Response) -> ErrorInfo:
    """The error of a response. A body in another form comes from a proxy in between."""
    try:
        return _decode_error(response.content).error
    except msgspec.DecodeError:
        return ErrorInfo("unknown", f"{response.url} answered {response.status_code}")
