"""A server that answers each request as a test prescribes, however wrong."""

import json
import socket
import threading


def answer(status: int, body: object, **headers: str) -> bytes:
    content = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(content)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


def refusal(status: int, code: str) -> bytes:
    return answer(status, {"error": {"code": code, "message": f"it is {code}"}})


#: The connection is cut after the request was read.
CUT = b""


class MisbehavingServer:
    """Answers each connection with the next of its answers, and with the last one ever after."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.requests: list[str] = []
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> "MisbehavingServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self.requests.append(_request(connection))
                reply = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                connection.sendall(reply)


def _request(connection: socket.socket) -> str:
    """The head of a request; its body is read as far as it says."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    text = head.decode()
    size = next(
        (int(li[15:]) for li in text.lower().split("\r\n") if li[:15] == "content-length:"), 0
    )
    while len(body) < size:
        body += connection.recv(65536)
    return text
