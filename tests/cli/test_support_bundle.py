"""`svc controller support-bundle`: enough to help with, and nothing that opens anything."""

from __future__ import annotations

import json
import re
import stat
import tarfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from svc.cli.failures import Exit
from tests.cli.conftest import EMAIL, PASSWORD, Ended, House, Terminal
from tests.support.stack import free_port


def content(file: Path) -> dict[str, bytes]:
    with tarfile.open(file) as bundle:
        read = {Path(entry.name).name: bundle.extractfile(entry) for entry in bundle.getmembers()}
        return {name: opened.read() for name, opened in read.items() if opened is not None}


async def bundled(terminal: Terminal, data: Path, file: Path, port: int, **environ: str) -> Ended:
    options = ("--data", str(data), "--bind", "127.0.0.1", "--operations-port", str(port))
    return await terminal.svc("controller", "support-bundle", str(file), *options, **environ)


async def test_a_bundle_tells_of_the_fleet_and_of_nobodys_secrets(
    house: House, tmp_path: Path, database_url: str
) -> None:
    await house.node()
    await house.image()
    made = json.loads((await house.machine("web-1", "--password", "--wait", "--output", "json")).out)
    file = tmp_path / "bundle.tar.gz"
    port = urlsplit(house.operations_url).port
    assert port is not None

    ended = await bundled(house, tmp_path / "controller", file, port, SVC_DATABASE_URL=database_url)

    assert ended.code == Exit.OK, ended.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    parts = content(file)
    database = json.loads(parts["database.json"])
    assert [node["state"] for node in database["nodes"]] == ["online"]
    assert database["machines"] == [{"status": "running", "number": 1}]
    assert all(isinstance(found, list) for name, found in database.items() if name != "version")
    assert b"svc_nodes_connected 1.0" in parts["metrics.txt"]
    assert b"service: it runs" in parts["check.txt"]
    everything = b"\n".join(parts.values()).decode()
    token = house.profile.token or ""
    for secret in (PASSWORD, EMAIL, token, made["password"], (tmp_path / "controller/setup-token").name + "svcsetup_"):
        assert secret not in everything
    assert not re.search(r"svc(vm|node|setup)_[A-Za-z0-9_-]{20}|PRIVATE KEY|argon2", everything)


@pytest.mark.usefixtures("hurried")
async def test_a_bundle_is_made_where_nothing_works(terminal: Terminal, tmp_path: Path) -> None:
    url = f"postgresql://svc:hunter2@127.0.0.1:{free_port()}/svc"
    file = tmp_path / "bundle.tar.gz"

    ended = await bundled(terminal, tmp_path / "data", file, free_port(), SVC_DATABASE_URL=url)

    assert ended.code == Exit.OK, ended.err
    parts = content(file)
    assert "not available" in json.loads(parts["database.json"])
    assert b"not available" in parts["metrics.txt"]
    assert b"failed   database" in parts["check.txt"]
    assert b"hunter2" not in b"".join(parts.values())


async def test_a_file_that_is_there_is_left_alone(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar.gz"
    file.write_text("mine")

    ended = await bundled(terminal, tmp_path / "data", file, free_port())

    assert ended.code != Exit.OK
    assert "already exists" in ended.err
    assert file.read_text() == "mine"
