"""The signature of a delivery, version 1 (hosting-panel-api.md, Signature).

`X-Service-Signature: t=<unix seconds>,v1=<hex>`: HMAC-SHA256 of `<t>.<body>` with the endpoint's secret as shown,
including `whsec_`.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from svc_actors.secrets import new_secret

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - the public start of a secret


def new_webhook_secret() -> str:
    """256 random bits behind the prefix."""
    return new_secret(SECRET_PREFIX)


def signature_header(secret: str, timestamp: int, body: bytes) -> str:
    return f"t={timestamp},v1={digest(secret, b'%d.' % timestamp + body)}"


def digest(secret: str, signed: bytes) -> str:
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
