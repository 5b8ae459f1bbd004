"""What a browser is given for a page: the files as built, and the headers that bind it."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from quart.typing import TestClientProtocol as Client
from quart_trio import QuartTrio

import svc_http.pages
from svc_http.pages import add_pages

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "http" / "dashboard" / "src"
CONSOLE = "/console/7b1c9a52-4f0e-4b0f-9d4a-5a3f1f9c0d11"
PAGES = ["/", CONSOLE, f"{CONSOLE}?kind=vnc", f"{CONSOLE}?kind=serial"]


@pytest.fixture(scope="session")
def built() -> Path:
    """The pages of this tree, built if they were not."""
    subprocess.run([ROOT / "tools" / "build-dashboard"], check=True)
    return Path(svc_http.pages.__file__).parent / "static" / "controller"


@pytest.fixture
def client(built: Path) -> Client:
    app = QuartTrio(__name__, static_folder=None)
    add_pages(app, built)
    return app.test_client()


class Inspection(HTMLParser):
    """What of a page would run or load."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[str | None] = []
        self.loaded: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "script":
            self.scripts.append(given.get("src"))
        self.loaded += [value for name in ("src", "href") if (value := given.get(name)) is not None]
        self.handlers += [name for name in given if name.startswith("on") or name == "style"]


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_has_no_inline_script_and_loads_only_what_is_served_here(client: Client, path: str) -> None:
    page = Inspection()
    page.feed(await (await client.get(path)).get_data(as_text=True))
    assert page.scripts
    assert None not in page.scripts
    assert page.handlers == []
    for asset in page.loaded:
        assert (await client.get(asset)).status_code == 200, asset


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_forbids_the_browser_what_it_does_not_need(client: Client, path: str) -> None:
    answer = await client.get(path)
    policy = {rule.split()[0]: rule.split()[1:] for rule in answer.headers["Content-Security-Policy"].split(";")}
    assert policy["default-src"] == ["'self'"]
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["object-src"] == ["'none'"]
    assert "script-src" not in policy
    assert ("style-src" in policy) == ("kind=serial" in path)


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_is_asked_for_anew_and_sent_only_when_it_changed(client: Client, path: str) -> None:
    first = await client.get(path)
    assert first.headers["Cache-Control"] == "no-cache"
    again = await client.get(path, headers={"If-None-Match": first.headers["ETag"]})
    assert again.status_code == 304
    assert await again.get_data() == b""


async def test_an_asset_is_kept_for_ever_since_its_name_changes_with_its_content(client: Client) -> None:
    page = await (await client.get("/")).get_data(as_text=True)
    assets = re.findall(r"/assets/[\w.-]+", page)
    assert assets
    for asset in assets:
        assert re.search(r"-[A-Z0-9]{8}\.", asset)
        assert "immutable" in (await client.get(asset)).headers["Cache-Control"]


async def test_an_asset_is_sent_compressed_to_who_takes_it(client: Client) -> None:
    page = await (await client.get("/")).get_data(as_text=True)
    (script,) = re.findall(r'src="([^"]+)"', page)
    plain = await client.get(script)
    small = await client.get(script, headers={"Accept-Encoding": "gzip, br"})
    assert small.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(await small.get_data(as_text=False)) == await plain.get_data(as_text=False)
    assert small.headers["ETag"] != plain.headers["ETag"]


@pytest.mark.parametrize("path", ["/assets/../index.html", "/assets/nothing.js", "/console/not-an-id", "/index.html"])
async def test_nothing_else_is_served(client: Client, path: str) -> None:
    assert (await client.get(path)).status_code == 404


async def test_pages_that_were_not_built_say_so(tmp_path: Path) -> None:
    app = QuartTrio(__name__, static_folder=None)
    add_pages(app, tmp_path)
    answer = await app.test_client().get("/")
    assert answer.status_code == 503
    assert "tools/build-dashboard" in await answer.get_data(as_text=True)


LISTING = """
import { everyOf } from "./api.mjs";
const groups = Array.from({ length: 450 }, (_, number) => number);
globalThis.dispatchEvent = () => true;
globalThis.fetch = async (url) => {
  const query = new URL(url, "https://controller.test").searchParams;
  const [page, size] = [Number(query.get("page") ?? 1), Number(query.get("page_size"))];
  const items = groups.slice((page - 1) * size, page * size);
  return Response.json({ items, total: groups.length, page, page_size: size, pages: Math.ceil(groups.length / size) });
};
console.log(JSON.stringify(await everyOf("/security-groups")));
"""


@pytest.mark.usefixtures("built")
def test_a_machines_groups_are_chosen_among_all_that_there_are(tmp_path: Path) -> None:
    """What is chosen takes the place of all the machine's groups: one that is not offered would be taken from it."""
    chooser = (SOURCES / "controller" / "views" / "machine-networking.ts").read_text()
    assert re.findall(r'(\w+)(?:<\w+>)?\("/security-groups"', chooser) == ["everyOf"]
    path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path}
    node = shutil.which("node", path=path)
    assert node is not None
    bundler = ROOT / "http" / "dashboard" / "node_modules" / "esbuild" / "bin" / "esbuild"
    module = [str(SOURCES / "shared" / "api.ts"), "--bundle", "--format=esm", f"--outfile={tmp_path / 'api.mjs'}"]
    subprocess.run([node, bundler, *module, "--log-level=error"], env=environment, check=True)
    (tmp_path / "listing.mjs").write_text(LISTING)
    said = subprocess.run([node, tmp_path / "listing.mjs"], env=environment, check=True, capture_output=True, text=True)
    assert json.loads(said.stdout) == list(range(450))


def test_the_lock_of_the_build_names_no_registry() -> None:
    lock = (ROOT / "http" / "dashboard" / "package-lock.json").read_text()
    assert '"integrity"' in lock
    assert '"resolved"' not in lock
