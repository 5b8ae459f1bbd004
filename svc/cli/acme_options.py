"""The ACME authority, as options of the commands of either service (docs/configuration.md)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import asyncclick as click

from svc.cli.failures import Exit, Failure
from svc_actors.certificates.settings import LETS_ENCRYPT, AcmeSettings

FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False, readable=True)


def acme_options(contact: str) -> tuple[Callable[[Any], Any], ...]:
    """`contact` describes the contact option: what giving one turns on."""
    return (
        click.option("--acme-contact", help=contact),
        click.option(
            "--acme-terms-agreed",
            type=bool,
            default=False,
            show_default=True,
            help="Accept the authority's terms of service; without, no certificate is requested.",
        ),
        click.option("--acme-directory", default=LETS_ENCRYPT, show_default=True, help="The authority."),
        click.option(
            "--acme-roots",
            type=FILE,
            help="CA certificates to trust for the authority's own server, if the system does not trust it.",
        ),
        click.option(
            "--acme-eab-key-id", help="Key id of your account with a commercial authority (external account binding)."
        ),
        click.option("--acme-eab-key-file", type=FILE, help="File with the key of that account, in base64url."),
    )


def acme_settings(
    contact: str | None,
    *,
    terms_agreed: bool,
    directory: str,
    roots: Path | None,
    eab_key_id: str | None,
    eab_key_file: Path | None,
    names: tuple[str, ...] = (),
    port: int = 0,
) -> AcmeSettings | None:
    """The ACME settings in the options; None without a contact. Raises `Failure` for options that contradict each
    other."""
    if (eab_key_id is None) is not (eab_key_file is None):
        raise Failure(
            Exit.INVALID, "An external account needs both its key id and its key file: give both, or neither."
        )
    if contact is None:
        return None
    return AcmeSettings(
        contact,
        names,
        terms_agreed=terms_agreed,
        directory=directory,
        roots=roots,
        external_key_id=eab_key_id,
        external_key_file=eab_key_file,
        port=port,
    )
