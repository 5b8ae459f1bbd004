"""A git server of a test's own, over HTTPS: git's own http-backend behind Python's web server."""

from __future__ import annotations

import os
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

from svc_http.certificates import TlsFiles

_BACKEND = "/usr/lib/git-core/git-http-backend"
_IDENTITY = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "init.defaultBranch=main")


@dataclass(frozen=True)
class GitServer:
    """`url` is of its one repository, which begins empty."""

    folder: Path
    url: str

    def commit(self, files: Mapping[str, str], tag: str | None = None) -> str:
        """The name of a commit on `main` with these files changed."""
        work = self.folder / "work"
        if not work.exists():
            _git("init", "--quiet", str(work))
        for name, text in files.items():
            (work / name).write_text(text)
        _git("-C", str(work), "add", "--all")
        _git("-C", str(work), "commit", "--quiet", "--message=a change")
        if tag is not None:
            _git("-C", str(work), "tag", tag)
        _git("-C", str(work), "push", "--quiet", "--tags", str(self.folder / "shop.git"), "main")
        return _git("-C", str(work), "rev-parse", "HEAD").strip()


def bare_repository(folder: Path) -> GitServer:
    """`shop.git` in the folder, served by nobody yet."""
    _git("init", "--quiet", "--bare", str(folder / "shop.git"))
    return GitServer(folder, str(folder / "shop.git"))


@contextmanager
def git_server(folder: Path, tls: TlsFiles) -> Iterator[GitServer]:
    """`tls` is of localhost."""
    repository = bare_repository(folder)
    handler = type("Handler", (_Handler,), {"folder": folder})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, name="git-server")
    thread.start()
    try:
        yield replace(repository, url=f"https://localhost:{server.server_address[1]}/shop.git")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _git(*arguments: str) -> str:
    done = subprocess.run(("git", *_IDENTITY, *arguments), check=True, capture_output=True, text=True)
    return done.stdout


class _Handler(BaseHTTPRequestHandler):
    folder: ClassVar[Path]

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers["Content-Length"])))

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing of it is wanted in a test's output."""

    def _serve(self, body: bytes) -> None:
        path, _, query = self.path.partition("?")
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "REMOTE_ADDR": "127.0.0.1",
            # Of whoever asks, not of whoever serves.
            "GIT_CONFIG_COUNT": "2",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "GIT_CONFIG_KEY_1": "uploadpack.allowAnySHA1InWant",
            "GIT_CONFIG_VALUE_1": "true",
        }
        answer = subprocess.run((_BACKEND,), input=body, env=environment, check=True, capture_output=True).stdout
        head, _, content = answer.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
