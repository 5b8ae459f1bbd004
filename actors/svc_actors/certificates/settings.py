"""An operator's settings of the certificate authority."""

from __future__ import annotations

import binascii
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from svc_actors.acme import AcmeError, ExternalAccount
from svc_actors.acme.keys import from_base64url

LETS_ENCRYPT: Final = "https://acme-v02.api.letsencrypt.org/directory"


@dataclass(frozen=True)
class AcmeSettings:
    """`contact`: an e-mail address, to which authorities write. `roots`: PEM file of the roots of the directory's own
    certificate, if the system does not have them. `external_key_file` holds the key of `external_key_id` in base64url,
    as commercial authorities issue it. `port`: the port that answers http-01; 0 for the API's own port only."""

    contact: str
    names: tuple[str, ...]
    terms_agreed: bool = False
    directory: str = LETS_ENCRYPT
    roots: Path | None = None
    external_key_id: str | None = None
    external_key_file: Path | None = None
    port: int = 80

    def trust(self) -> ssl.SSLContext:
        """Raises `AcmeError` for a file that has no certificate."""
        try:
            return ssl.create_default_context(cafile=str(self.roots) if self.roots else None)
        except OSError as error:  # `ssl.SSLError` is one.
            raise AcmeError(f"The roots of the authority in {self.roots} cannot be read: {error}") from error

    def external_account(self) -> ExternalAccount | None:
        """Raises `AcmeError` for a file that holds no key."""
        if self.external_key_id is None or self.external_key_file is None:
            return None
        try:
            key = from_base64url(self.external_key_file.read_text().strip())
        except (OSError, ValueError, binascii.Error) as error:
            raise AcmeError(
                f"The external account's key in {self.external_key_file} cannot be read: {error}"
            ) from error
        return ExternalAccount(self.external_key_id, key)
