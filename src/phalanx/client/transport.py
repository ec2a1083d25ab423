"""Asking the server that leads: finding it, following it, and asking again where that is safe."""

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import msgspec

from phalanx.client.errors import UnreachableError, refused
from phalanx.wire.errors import ErrorBody, ErrorInfo

#: A standby may send us to one that has just lost the lead itself.
_HOPS = 3
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0

_decode_error = msgspec.json.Decoder(ErrorBody).decode


class ApiRequest(NamedTuple):
    method: str
    path: str
    params: Mapping[str, Any] = {}
    content: bytes | None = None
    headers: Mapping[str, str] = {}
    repeatable: bool = True  #: whether doing it twice does no harm
    streamed: bool = False
    #: How long a stream may be silent; the server's own say every few seconds that they live.
    silence_s: float | None = 60.0


class _TryAnotherError(Exception):
    """This server cannot serve us now; the message says why."""


class Transport:
    """The servers of one cluster. Remembers which of them answered last."""

    def __init__(
        self, urls: tuple[str, ...], token: str | None, timeout_s: float, patience_s: float
    ) -> None:
        self.urls = urls
        self.patience_s = patience_s
        self.detours = 0  #: how often a server could not serve us
        self._leader = urls[0]
        headers = {"Accept": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._timeout_s = timeout_s
        self._http = httpx.Client(headers=headers)

    def close(self) -> None:
        self._http.close()

    def ask(self, ask: ApiRequest) -> httpx.Response:
        """The leader's answer. Raises UnreachableError or RefusedError."""
        deadline = time.monotonic() + self.patience_s
        pause = _PAUSE_S
        while True:
            problems: dict[str, str] = {}
            for url in dict.fromkeys((self._leader, *self.urls)):
                try:
                    return self._ask_one(url, ask)
                except _TryAnotherError as error:
                    problems[url] = str(error)
                    self.detours += 1
            if time.monotonic() + pause > deadline:
                raise UnreachableError(_unreachable(problems))
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _ask_one(self, url: str, ask: ApiRequest) -> httpx.Response:
        for _ in range(_HOPS):
            answer = self._send(url, ask)
            if answer.status_code != 307:
                break
            location = urlsplit(answer.headers.get("Location", ""))
            if not location.netloc:
                raise _TryAnotherError("it leads nowhere")
            url = f"{location.scheme}://{location.netloc}"
        else:
            raise _TryAnotherError("it stands by, and so does the one that it names")
        if answer.status_code == 503 and (ask.repeatable or _code(answer) == "no_leader"):
            raise _TryAnotherError(_info(answer).message)
        self._leader = url
        if answer.status_code >= 300:
            raise refused(answer.status_code, _info(answer), answer.headers.get("X-Request-ID", ""))
        return answer

    def _send(self, url: str, ask: ApiRequest) -> httpx.Response:
        silence = ask.silence_s if ask.streamed else self._timeout_s
        request = self._http.build_request(
            ask.method,
            url + ask.path,
            params={name: value for name, value in ask.params.items() if value is not None},
            content=ask.content,
            headers=dict(ask.headers),
            timeout=httpx.Timeout(self._timeout_s, read=silence),
        )
        try:
            answer = self._http.send(request, stream=ask.streamed)
            if answer.status_code >= 300:
                answer.read()
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _TryAnotherError(_said(error)) from None
        except httpx.TransportError as error:
            if ask.repeatable:
                raise _TryAnotherError(_said(error)) from None
            raise UnreachableError(
                f"{url} did not answer ({_said(error)}); it may have done it or not: look before"
                " you ask again"
            ) from None
        return answer


def lines_of(answer: httpx.Response) -> Iterator[str]:
    """The lines of a stream as they come. Only a line feed ends one: what else looks like an end
    to Unicode is part of what somebody printed."""
    rest = b""
    for data in answer.iter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def _said(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__


def _unreachable(problems: Mapping[str, str]) -> str:
    told = "; ".join(f"{url}: {problem}" for url, problem in problems.items())
    return f"no server answers ({told})"


def _info(answer: httpx.Response) -> ErrorInfo:
    """What a refusal says; one that is not ours comes from a proxy in between."""
    try:
        return _decode_error(answer.content).error
    except msgspec.DecodeError:
        return ErrorInfo("unknown", f"{answer.url} answered {answer.status_code}")


def _code(answer: httpx.Response) -> str:
    return _info(answer).code
