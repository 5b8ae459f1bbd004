"""What a delivery carries: the body of an event, and its signature (specification, Payload and Signature).

The body has server, subject and data, for every service. Invariant: a payload holds flat scalars that its emitter lists
one by one: never a request, a row or a file of a customer.

Version 1 of the signature is `X-Service-Signature: t=<unix seconds>,v1=<hex>`: HMAC-SHA256 of `<t>.<body>` with the
endpoint's secret as shown, including `whsec_`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from typing import Final
from uuid import UUID

from svc_actors.secrets import new_secret

Scalar = str | int | float | bool | None

LONGEST_TEXT: Final = 1000
"""Characters of one value; a longer text is cut, so that an error message does not become a dump."""
_KEY: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - the public start of a secret


@dataclass(frozen=True)
class Subject:
    """What an event is about: `Subject("site", str(site_id), "example.org")`."""

    kind: str
    id: str
    name: str | None = None


def compose(
    event: str,
    *,
    event_id: UUID,
    at: datetime,
    server: Mapping[str, str],
    subject: Subject | None,
    data: Mapping[str, Scalar],
) -> bytes:
    """The exact body of every delivery of an event. `server`: what the service says of itself in addition to its host
    name and version. Raises ValueError for data that are not flat scalars."""
    content: dict[str, object] = {
        "id": str(event_id),
        "event": event,
        "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "server": {"hostname": socket.gethostname(), **server, "version": metadata.version("svc")},
    }
    if subject is not None:
        content["subject"] = {"kind": subject.kind, "id": subject.id, "name": subject.name}
    content["data"] = {_key(name): _scalar(name, value) for name, value in data.items()}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def _key(name: str) -> str:
    if not _KEY.fullmatch(name):
        raise ValueError(f"a key of a webhook's data is in small letters, not {name!r}")
    return name


def _scalar(name: str, value: object) -> Scalar:
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else value[: LONGEST_TEXT - 1] + "…"
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"data of a webhook are scalars; {name} is {type(value).__name__}")


def new_webhook_secret() -> str:
    """256 random bits behind the prefix."""
    return new_secret(SECRET_PREFIX)


def signature_header(secret: str, timestamp: int, body: bytes) -> str:
    return f"t={timestamp},v1={digest(secret, b'%d.' % timestamp + body)}"


def digest(secret: str, signed: bytes) -> str:
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
