"""A web server on this machine that fails in the ways that real ones do."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class Behaviour:
    """What the server does with the file.

    `cuts` are the lengths after which the first answers break off; the later ones are whole. After
    that, a server that stalls keeps the connection open.
    """

    data: bytes
    cuts: list[int] = field(default_factory=list)
    status: int = 200
    content_type: str = "application/octet-stream"
    ranges: bool = True
    wrong_range: bool = False
    stalls: bool = False
    redirect: str = ""
    extra: bytes = b""
    sent: list[int] = field(default_factory=list)
    asked: list[str | None] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    behaviour: Behaviour

    def do_GET(self) -> None:
        does = self.behaviour
        wanted = self.headers.get("Range")
        does.asked.append(wanted)
        if does.redirect and self.path != "/moved":
            self.send_response(302)
            self.send_header("Location", does.redirect)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start = int(wanted[6:].rstrip("-")) if wanted and does.ranges else 0
        body = (does.data + does.extra)[start:]
        self.send_response(206 if start and does.status == 200 else does.status)
        if start:
            shown = start + 1 if does.wrong_range else start
            self.send_header(
                "Content-Range", f"bytes {shown}-{len(does.data) - 1}/{len(does.data)}"
            )
        self.send_header("Content-Type", does.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if does.cuts:
            body = body[: does.cuts.pop(0)]
        does.sent.append(len(body))
        self.wfile.write(body)
        self.wfile.flush()
        if does.stalls:
            does.ended.wait(30)  # a client that waits longer finds the connection broken off

    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def serving(behaviour: Behaviour, certificate: Path | None = None) -> Iterator[str]:
    """Serve on a free port; the address of the file, `https` if there is a certificate."""
    behaviour.ended.clear()
    handler = type("Handler", (_Handler,), {"behaviour": behaviour})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http{'s' * (certificate is not None)}://127.0.0.1:{server.server_port}/file"
    finally:
        behaviour.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
