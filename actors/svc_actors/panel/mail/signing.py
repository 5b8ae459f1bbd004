"""Makes the DKIM signatures (RFC 6376) of sites' mail, each with the key of the zone that its From is in.

The tenant's process has computed what a signature covers (`svc_webhost.mail.dkim`); here it is text of bounded length
that is hashed and not parsed. A site gets signatures only for its own names, those above them, and zones that this
server has for its owner. A tenant who hands in other data than the message's own gets a signature that does not verify,
and that covers nothing which the tenant could not send anyway.

Mail is signed only once the key's public half is served: until then receivers could not verify a signature.

Why: docs/decisions/0058-dkim-of-zones.md.
"""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from typing import Annotated, Final
from uuid import UUID

import structlog
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import load_der_private_key
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from svc_actors.panel.mail.keys import WANTED, purpose
from svc_actors.sealing import CannotUnseal, Sealer
from svc_actors.store import Transaction
from svc_webhost.knot.names import is_within, to_ascii
from svc_webhost.mail.dkim import LONGEST_HEADERS, MOST_FIELDS

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.mail")

_NAME: Final = r"[a-z][a-z-]{0,40}"
_LINE: Final = 76
# Three bytes are four letters of Base64.
_LONGEST_ENCODED: Final = (LONGEST_HEADERS + 2) // 3 * 4


class SigningData(BaseModel):
    """`svc_webhost.mail.dkim.SigningData` as a site's process hands it in."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    headers: Annotated[str, StringConstraints(max_length=_LONGEST_ENCODED, pattern=r"^[A-Za-z0-9+/]*={0,2}$")]
    names: Annotated[str, Field(pattern=rf"^{_NAME}(?::{_NAME}){{0,{MOST_FIELDS}}}$")]
    body_hash: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]{43}=$")]


class Signatures:
    """One per process."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    async def signature_for(
        self, tx: Transaction, site_id: UUID, from_domain: str, data: SigningData | None
    ) -> str | None:
        """The field DKIM-Signature of a mail of this site, in lines that end with CRLF, to be the message's first
        lines; None if it is not signed. `from_domain` is the domain of its From, as the site has said. If its zone has
        no key, one is made once `tx` has committed, for the mails to come."""
        if data is None:
            return None
        try:
            domain = to_ascii(from_domain)
        except ValueError:
            return None
        row = await tx.fetchrow(
            """SELECT dns_zones.name, selector, private_key FROM sites
               JOIN site_domains ON site_domains.site_id = sites.id
               JOIN dns_zones ON dns_zones.name = registrable AND dns_zones.owner_id = sites.owner_id
               LEFT JOIN dkim_keys ON dkim_keys.zone = dns_zones.name
               WHERE sites.id = $1 AND (site_domains.name = $2 OR site_domains.name LIKE '%.' || $2)
               LIMIT 1""",
            site_id,
            # Underscores stand for any character in a pattern; names of sites have none.
            domain.replace("_", r"\_"),
        )
        if row is None or not is_within(domain, row["name"]):
            return None
        if row["selector"] is None:
            tx.announce(WANTED, row["name"])
            return None
        try:
            private = self._sealer.unseal(row["private_key"], purpose(row["name"], row["selector"]))
        except CannotUnseal as error:
            # Mail without a signature is better than none: a new key is made by `dns.rotate_dkim`.
            log.warning("mail.dkim_key_not_opened", zone=row["name"], error=str(error))
            return None
        key = load_der_private_key(
            private,
            None,
            # Checked when it was made. Checking it again takes 90 ms, ten thousand times as long as reading it.
            unsafe_skip_rsa_key_validation=True,
        )
        assert isinstance(key, rsa.RSAPrivateKey), "no others are made"
        return signature(data, row["name"], row["selector"], key, int(time.time()))


def signature(data: SigningData, zone: str, selector: str, key: rsa.RSAPrivateKey, at: int) -> str:
    """The field with its line ends, folded. `at` is in seconds of Unix time."""
    names = data.names.split(":")
    words = [
        "v=1;",
        "a=rsa-sha256;",
        "c=relaxed/relaxed;",
        f"d={zone};",
        f"s={selector};",
        f"t={at};",
        # May be folded at its colons: a line of a message has at most 998 bytes.
        *(f"{'h=' if at_ == 0 else ''}{name}:" for at_, name in enumerate(names[:-1])),
        f"{'' if names[1:] else 'h='}{names[-1]};",
        f"bh={data.body_hash};",
        "b=",
    ]
    # As relaxed canonicalization leaves the field: each fold is one space.
    own = f"dkim-signature:{' '.join(words)}".encode()
    signed = key.sign(b64decode(data.headers) + own, padding.PKCS1v15(), hashes.SHA256())
    encoded = b64encode(signed).decode()
    lines = ["DKIM-Signature:"]
    for word in words:
        if len(lines[-1]) + 1 + len(word) > _LINE:
            lines.append("")
        lines[-1] += f" {word}"
    # White space within b= does not count.
    lines += [f" {encoded[start : start + _LINE - 1]}" for start in range(0, len(encoded), _LINE - 1)]
    return "".join(f"{line}\r\n" for line in lines)
