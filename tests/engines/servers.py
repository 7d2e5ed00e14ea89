"""Engines that misbehave on the wire, each in a thread of its own."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

Talk = Callable[[socket.socket, threading.Event], None]


def silent(link: socket.socket, over: threading.Event) -> None:
    """Accepts and says nothing."""
    over.wait()


def closing(link: socket.socket, over: threading.Event) -> None:
    """Accepts and closes at once."""


def http(link: socket.socket, over: threading.Event) -> None:
    """Something else listens on the port."""
    link.recv(64)
    link.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


def babbling(link: socket.socket, over: threading.Event) -> None:
    """Bytes without an end."""
    with contextlib.suppress(OSError):
        while not over.is_set():
            link.sendall(b"\xff" * 4096)


def dripping(link: socket.socket, over: threading.Event) -> None:
    """Answers, but so slowly that any deadline comes first."""
    with contextlib.suppress(OSError):
        while not over.wait(0.2):
            link.sendall(b"D")


def greeting(path: str, stays: bool) -> Talk:
    """An engine as the stand-in bindings know it: the one whose state is in ``path``. Without ``stays`` it dies at once."""

    def talk(link: socket.socket, over: threading.Event) -> None:
        # Without MSG_MORE who has read the greeting may find the link still open for a moment.
        link.sendall(f"DCGM {path}\n".encode(), 0 if stays else socket.MSG_MORE)
        if stays:
            over.wait()

    return talk


@contextlib.contextmanager
def serving(talk: Talk, unix: str = "") -> Iterator[str]:
    """The server's address as the policy writes it, while it serves."""
    over = threading.Event()
    server = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
    server.bind(unix or ("127.0.0.1", 0))
    server.listen(8)

    def one(link: socket.socket) -> None:
        with link, contextlib.suppress(OSError):
            talk(link, over)

    def accept() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                link, _ = server.accept()
                threading.Thread(target=one, args=(link,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"unix://{unix}" if unix else f"tcp://127.0.0.1:{server.getsockname()[1]}"
    finally:
        over.set()
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(5)
