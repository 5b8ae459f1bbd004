"""Where releases are looked for: a server by HTTPS, a folder, and what is put into one by hand."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from svc_actors.panel.releases.manifest import FILE, ReleaseError, verified
from svc_actors.panel.releases.sources import FolderSource, HttpsSource
from tests.panel.releases.world import World
from tests.support.certificates import self_signed
from tests.support.own_releases import MAKER, release_tree
from tools.release_archive import make_release


async def test_what_is_put_into_the_folder_for_it_by_hand_is_installed_as_well(world: World) -> None:
    make_release(release_tree(world.folder / "by-hand"), world.releases.incoming, "1.3.0", MAKER)
    world.offer("1.2.0")

    job = await world.ordered()

    assert job["status"] == "succeeded"
    assert [name.partition("-")[0] for name in world.releases.names()] == ["1.0.0", "1.3.0"]


@contextmanager
def https_server(folder: Path, certificates: Path) -> Iterator[HttpsSource]:
    certificates.mkdir()
    files = self_signed(certificates)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:
            """Not of interest."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        trusting = ssl.create_default_context(cafile=str(files.certificate))
        yield HttpsSource(f"https://localhost:{server.server_address[1]}", trusting)
        server.shutdown()


async def test_releases_are_fetched_by_https_from_a_server_that_this_system_trusts(
    world: World, tmp_path: Path
) -> None:
    manifest = world.offer()
    to = tmp_path / "fetched"
    with https_server(world.offers, tmp_path / "tls") as source:
        line = await source.line()
        await source.fetch(manifest.archive, to)
        (world.offers / FILE).unlink()
        none = await source.line()
        with pytest.raises(ReleaseError, match="did not deliver"):
            await replace(source, context=ssl.create_default_context()).line()

    assert verified(line or "", world.own.keys) == manifest
    assert to.read_bytes() == (world.offers / manifest.archive.name).read_bytes()
    assert none is None


async def test_a_source_that_cannot_be_reached_is_said_and_what_was_found_before_stays(world: World) -> None:
    world.offer()
    await world.ordered("look")
    (world.offers / FILE).unlink()
    (world.offers / FILE).mkdir()
    job = await world.ordered("look")
    shown = await world.show()

    assert job["status"] == "failed"
    assert "cannot be read" in shown["look_error"]
    assert shown["offered"]["version"] == "1.1.0"
    assert await FolderSource(world.folder / "nowhere").line() is None
