"""A server of S3 and STS that holds temporary keys to the policy they were asked for with: moto, which keeps objects
and checks every signature but not these policies, behind a gate that does.

As AWS it answers 403 for a file that is not there, where the keys may not list the whole bucket.
"""

from __future__ import annotations

import fnmatch
import http.client
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.s3 import BUCKET, S3

ROLE: Final = "arn:aws:iam::123456789012:role/backups"
_ACTIONS: Final = {"GET": "s3:GetObject", "HEAD": "s3:GetObject", "PUT": "s3:PutObject", "DELETE": "s3:DeleteObject"}
_OWN: Final = ("transfer-encoding", "connection", "server", "date")
_REFUSED: Final = b"<Error><Code>AccessDenied</Code><Message>Access Denied.</Message></Error>"


class Gate(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, behind: S3) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = urlsplit(behind.url).netloc
        self.policies: dict[str, Any] = {}
        self.expired: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def lets(self, key: str, method: str, target: str) -> bool:
        policy = self.policies.get(key)
        if policy is None:
            return True  # Not a temporary one: moto knows what it may do.
        if key in self.expired:
            return False
        parts = urlsplit(target)
        bucket, _, name = unquote(parts.path).lstrip("/").partition("/")
        query = parse_qs(parts.query, keep_blank_values=True)
        if name:
            return _allowed(policy, _ACTIONS.get(method, "?"), f"arn:aws:s3:::{bucket}/{name}", None)
        action = "s3:GetBucketLocation" if "location" in query else "s3:ListBucket"
        return _allowed(policy, action, f"arn:aws:s3:::{bucket}", query.get("prefix", [None])[0])


def _allowed(policy: Any, action: str, resource: str, prefix: str | None) -> bool:
    for statement in policy["Statement"]:
        wanted = statement.get("Condition", {}).get("StringLike", {}).get("s3:prefix")
        if (
            action in statement["Action"]
            and any(fnmatch.fnmatchcase(resource, each) for each in statement["Resource"])
            and (wanted is None or (prefix is not None and any(fnmatch.fnmatchcase(prefix, each) for each in wanted)))
        ):
            return True
    return False


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gate

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = re.search(r"Credential=([^/]+)/", self.headers.get("Authorization", ""))
        key = found[1] if found else ""
        if not self.server.lets(key, self.command, self.path):
            self._answer(403, {}, _REFUSED)
            return
        connection = http.client.HTTPConnection(self.server.behind, timeout=60)
        connection.request(self.command, self.path, body, dict(self.headers.items()))
        answer = connection.getresponse()
        content = answer.read()
        form = parse_qs(body.decode(errors="replace")) if b"Action=AssumeRole" in body else {}
        if form and answer.status == 200:
            given = re.search(rb"<AccessKeyId>([^<]+)<", content)
            assert given is not None
            self.server.policies[given[1].decode()] = json.loads(form["Policy"][0])
        if answer.status == 404 and key in self.server.policies:
            self._answer(403, {}, _REFUSED)
            return
        kept = {
            n: v
            for n, v in answer.getheaders()
            if n.lower() not in ("transfer-encoding", "connection", "server", "date")
        }
        self._answer(answer.status, kept, content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if self.command == "HEAD" or name.lower() != "content-length":
                self.send_header(name, value)
        if self.command != "HEAD" or ("Content-Length" not in headers and "content-length" not in headers):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def bound(behind: S3) -> Iterator[Gate]:
    users = behind._client("iam")
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": "sts:AssumeRole",
                "Principal": {"AWS": "arn:aws:iam::123456789012:user/backup"},
            }
        ],
    }
    everything = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    users.create_role(RoleName="backups", AssumeRolePolicyDocument=json.dumps(trust))
    users.put_role_policy(RoleName="backups", PolicyName="all", PolicyDocument=json.dumps(everything))
    with Gate(behind) as gate:
        thread = threading.Thread(target=gate.serve_forever)
        thread.start()
        try:
            yield gate
        finally:
            gate.shutdown()
            thread.join()


__all__ = ["BUCKET", "ROLE", "Gate", "bound"]
