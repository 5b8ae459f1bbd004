"""A certificate that is renewed while the service runs, as the next client sees it."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import trio
import trio.testing

from svc_http.certificates import Certificates, TlsFiles
from tests.support.certificates import self_signed


def made(folder: Path) -> TlsFiles:
    folder.mkdir()
    return self_signed(folder)


def bare() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


async def shown(listening: ssl.SSLContext, name: str = "localhost") -> bytes:
    """The certificate that a client of this moment gets, without a network."""
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
    ours, theirs = trio.testing.memory_stream_pair()
    server = trio.SSLStream(ours, listening, server_side=True, https_compatible=True)
    client = trio.SSLStream(theirs, asking, server_hostname=name, https_compatible=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.do_handshake)
        await client.do_handshake()
    certificate = client.getpeercert(binary_form=True)
    assert isinstance(certificate, bytes)
    return certificate


def of(files: TlsFiles) -> bytes:
    return ssl.PEM_cert_to_DER_cert(files.certificate.read_text())


async def test_a_link_that_leads_to_another_certificate_is_shown_to_the_next_client(tmp_path: Path) -> None:
    """As certbot renews: it makes new files, and lets the links lead to them."""
    first, second = made(tmp_path / "1"), made(tmp_path / "2")
    live = tmp_path / "live"
    live.symlink_to(tmp_path / "1")
    certificates = Certificates(TlsFiles(live / "certificate.pem", live / "key.pem"))
    listening = certificates.context(bare)
    assert await shown(listening) == of(first)

    (tmp_path / "new").symlink_to(tmp_path / "2")
    os.replace(tmp_path / "new", live)
    await certificates.look()

    assert await shown(listening) == of(second)


async def test_files_that_do_not_belong_together_change_nothing_and_are_told_until_they_do(tmp_path: Path) -> None:
    files, renewed = made(tmp_path / "1"), made(tmp_path / "2")
    before, after = of(files), of(renewed)
    certificates = Certificates(files)
    listening = certificates.context(bare)

    os.replace(renewed.certificate, files.certificate)
    problem = await certificates.look()

    assert await shown(listening) == before
    assert "cannot be used; the previous certificate stays in use" in (problem or "")

    os.replace(renewed.key, files.key)
    problem = await certificates.look()

    assert await shown(listening) == after
    assert "cannot be used" not in (problem or "")


async def test_a_certificate_that_ends_soon_is_told(tmp_path: Path) -> None:
    certificates = Certificates(made(tmp_path / "1"))
    certificates.context(bare)

    problem = await certificates.look()

    assert "was not renewed" in (problem or "")


async def test_who_asks_for_a_name_gets_its_certificate_and_everybody_else_the_one_shown(tmp_path: Path) -> None:
    public, own = made(tmp_path / "public"), made(tmp_path / "own")

    listening = Certificates(public, {"nodes.svc.internal": own}).context(bare)

    assert await shown(listening) == of(public)
    assert await shown(listening, "nodes.svc.internal") == of(own)
