"""AWS Signature Version 4, which servers of S3 and STS require. Limited to requests whose body is known in full and
whose query has each name once.

Used by the controller, which requests temporary keys from an STS, and by agents, which list a folder of a bucket.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, urlsplit


@dataclass(frozen=True, repr=False)
class Keys:
    """`session_token`: for temporary keys."""

    access_key: str
    secret_key: str
    session_token: str | None = None


def signed(
    keys: Keys,
    method: str,
    url: str,
    *,
    service: str,
    region: str,
    at: datetime,
    query: Mapping[str, str] | None = None,
    body: bytes = b"",
    content_type: str | None = None,
) -> tuple[str, dict[str, str]]:
    """The address, with its query, and the headers to send. `url` has a path and no query; `at` is in UTC."""
    parts = urlsplit(url)
    path = quote(parts.path or "/", safe="/-_.~")
    asked = "&".join(
        f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in sorted((query or {}).items())
    )
    moment = at.strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(body).hexdigest()
    headers = {"host": parts.netloc, "x-amz-content-sha256": digest, "x-amz-date": moment}
    if keys.session_token is not None:
        headers["x-amz-security-token"] = keys.session_token
    if content_type is not None:
        headers["content-type"] = content_type
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = "\n".join((method, path, asked, lines, names, digest))
    scope = f"{moment[:8]}/{region}/{service}/aws4_request"
    wanted = "\n".join(("AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(request.encode()).hexdigest()))
    key = f"AWS4{keys.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, wanted.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return f"{parts.scheme}://{parts.netloc}{path}" + (f"?{asked}" if asked else ""), headers
