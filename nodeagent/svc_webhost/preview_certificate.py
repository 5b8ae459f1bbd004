"""The certificate of all previews, a wildcard, as files that the web server reads as root:

    certificates/previews/<domain>/s0/<fingerprint>/   chain.pem and key.pem, which never change
    certificates/previews/current                      a symbolic link to the folder of the one to serve

The link decides which certificate is served: each generation of the web server's configuration reads it once, and a
site's previews have TLS if this certificate is for their names. The files that the link names are complete, since it is
replaced last.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from svc_common.durable import sync_folder
from svc_webhost.certificate_files import CertificateFiles, CertificatePaths
from svc_webhost.folders import HostFolders
from svc_webhost.tree_removal import remove_tree

_ONLY: Final = 0
"""A number in place of a site's, for which `CertificateFiles` has a folder each."""

_CHANGING: Final = threading.Lock()
"""A new certificate is not served before it is whole, and until then must not count as one of a former domain."""


@dataclass(frozen=True)
class PreviewCertificate:
    """`domain`: the name below which its wildcard is. `fingerprint`: SHA-256 of the certificate, in hex."""

    domain: str
    fingerprint: str
    paths: CertificatePaths

    def is_for(self, names: Iterable[str]) -> bool:
        """Whether all of these are preview names below its domain."""
        return all(name.endswith(f".{self.domain}") for name in names)


def preview_certificate(folders: HostFolders) -> PreviewCertificate | None:
    """The certificate to serve, if its files are there. Blocks."""
    try:
        domain, _, fingerprint = (_folder(folders) / "current").readlink().parts
    except FileNotFoundError:
        return None
    return _if_there(folders, domain, fingerprint)


def certificate_named_in(folders: HostFolders, configuration: str) -> PreviewCertificate | None:
    """The certificate of previews that this configuration of the web server names, if its files are there. Blocks."""
    own = re.escape(str(_folder(folders)))
    found = re.search(rf'ssl_certificate "{own}/([^/"]+)/s{_ONLY}/([0-9a-f]+)/chain\.pem";', configuration)
    return None if found is None else _if_there(folders, found[1], found[2])


def put_preview_certificate(folders: HostFolders, domain: str, fingerprint: str, chain: str, key: bytes) -> None:
    """Make this the certificate to serve. Repeating it changes nothing. Blocks."""
    with _CHANGING:
        _put(folders, domain, fingerprint, chain, key)


def remove_preview_certificate(folders: HostFolders) -> None:
    """Have no certificate from now on. Its files stay, since the served configuration names them until all sites have
    changed. Blocks."""
    (_folder(folders) / "current").unlink(missing_ok=True)


def forget_former_domains(folders: HostFolders, configuration: str) -> None:
    """Remove the certificates and keys of all domains except those of the certificate to serve and of the certificate
    in `configuration`, which the web server serves. Blocks."""
    with _CHANGING:
        wanted, named = preview_certificate(folders), certificate_named_in(folders, configuration)
        kept = {each.domain for each in (wanted, named) if each is not None}
        own = _folder(folders)
        for each in own.iterdir() if own.is_dir() else ():
            if each.is_dir() and not each.is_symlink() and each.name not in kept:
                remove_tree(each, ignore_errors=True)


def _put(folders: HostFolders, domain: str, fingerprint: str, chain: str, key: bytes) -> None:
    own = _folder(folders)
    for folder in (folders.certificates, own):
        folder.mkdir(mode=0o700, exist_ok=True)
    files = CertificateFiles(own / domain)
    files.mend(_ONLY, fingerprint, chain, key)
    served = preview_certificate(folders)
    if served is not None and (served.domain, served.fingerprint) == (domain, fingerprint):
        return
    there = files.paths(_ONLY, fingerprint).chain.parent
    new = own / "current.new"
    new.unlink(missing_ok=True)
    new.symlink_to(there.relative_to(own))
    new.replace(own / "current")
    sync_folder(own)
    files.forget_old(_ONLY, fingerprint)


def _if_there(folders: HostFolders, domain: str, fingerprint: str) -> PreviewCertificate | None:
    paths = CertificateFiles(_folder(folders) / domain).paths(_ONLY, fingerprint)
    there = paths.chain.exists() and paths.key.exists()
    return PreviewCertificate(domain, fingerprint, paths) if there else None


def _folder(folders: HostFolders) -> Path:
    return folders.certificates / "previews"
