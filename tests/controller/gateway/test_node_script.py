"""What a new host runs: the script and the package, and whom they trust."""

from __future__ import annotations

import io
import re
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import trio
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from svc.controller.nodes import joining as nodes_joining
from svc.controller.nodes import package as nodes_package
from svc.registry.operation import Empty
from svc_nodeagent import releases
from tests.support.node_api import NodeApiHarness


async def test_the_wheel_that_a_host_installs_is_whole_and_the_same_each_time() -> None:
    wheel = nodes_package.agent_package()
    nodes_package.agent_package.cache_clear()
    assert nodes_package.agent_package() == wheel
    archive = zipfile.ZipFile(io.BytesIO(wheel))
    assert archive.testzip() is None
    (record,) = (name for name in archive.namelist() if name.endswith("/RECORD"))
    listed = {line.split(",")[0] for line in archive.read(record).decode().splitlines()}
    assert listed == set(archive.namelist())
    assert {"svc_nodeagent/cli.py", "svc_nodeagent/protocol/operations.py"} <= listed
    (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
    assert "Requires-Dist: libvirt-python" in archive.read(metadata).decode()
    assert "Requires-Dist: quart" not in archive.read(metadata).decode()


async def test_the_script_is_one_that_a_shell_reads_and_holds_no_secret(site: NodeApiHarness) -> None:
    token = await site.bootstrap()
    script = await site.call(nodes_joining.node_script, Empty())
    assert token not in script
    await trio.run_process(["sh", "-n"], stdin=script.encode())


def locked(text: str) -> dict[str, tuple[str, int]]:
    """Version and number of hashes of each package of a lock."""
    entries = re.split(r"\n(?=\S)", text.strip())
    parsed = [re.match(r"([A-Za-z0-9._-]+)==(\S+)", entry) for entry in entries]
    assert all(parsed), "every requirement is of one version"
    return {
        match[1]: (match[2], entry.count("--hash=sha256:"))
        for match, entry in zip(parsed, entries, strict=True)
        if match
    }


def test_a_host_installs_what_the_controller_was_tested_with_and_by_its_hashes() -> None:
    archive = zipfile.ZipFile(io.BytesIO(nodes_package.agent_package()))
    agent = locked(archive.read("svc_nodeagent/requirements.lock").decode())
    build = locked(archive.read("svc_nodeagent/build.lock").decode())
    ours = locked((Path(__file__).parents[3] / "requirements.lock").read_text())

    needed, waiting = set[str](), [Requirement(text) for text in nodes_package.requirements()]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in needed and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            needed.add(name)
            waiting += map(Requirement, metadata.requires(name) or [])

    assert needed <= set(agent)
    assert set(build) >= {"setuptools", "wheel"}
    assert all(hashes for _, hashes in (agent | build).values())
    assert {name: agent[name][0] for name in needed} == {name: ours[name][0] for name in needed}


async def test_the_script_leaves_installing_to_the_code_that_upgrades_do_it_with(site: NodeApiHarness) -> None:
    script = await site.call(nodes_joining.node_script, Empty())

    assert "pip" not in script
    assert "-m svc_nodeagent.releases" in script


def test_nothing_is_installed_that_no_hash_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(releases, "_run", ran.append)
    wheel = tmp_path / "agent.whl"
    wheel.write_bytes(nodes_package.agent_package())

    releases.Releases(tmp_path).install(wheel)

    installs = [command for command in ran if "install" in command]
    assert [Path(command[-1]).name for command in installs] == ["build.lock", "requirements.lock"]
    assert all({"--require-hashes", "--no-deps"} <= set(command) for command in installs)
    assert "--no-build-isolation" in installs[1]


async def test_the_script_takes_no_authority_but_the_one_of_the_fingerprint(
    site: NodeApiHarness, tmp_path: Path
) -> None:
    """Run with an apt-get and a curl that only say that they were called: nothing is installed before trust."""
    script = await site.call(nodes_joining.node_script, Empty())
    tools = tmp_path / "tools"
    tools.mkdir()
    authority = (await site.call(nodes_joining.node_authority, Empty())).decode()
    (tools / "authority").write_text(authority)
    _program(tools / "apt-get", 'echo "installed" >>"$0.calls"; exit 1')
    _program(tools / "id", "echo 0")
    _program(tools / "curl", f'while [ "$1" != -o ]; do shift; done; cat {tools}/authority >"$2"')
    environment = {
        "PATH": f"{tools}:/usr/sbin:/usr/bin:/sbin:/bin",
        "SVC_CONTROLLER": "https://controller.example:8443",
        "SVC_TOKEN": "svcnode_x",
        "SVC_FINGERPRINT": "0" * 64,
    }
    refused = await trio.run_process(["sh"], stdin=script.encode(), env=environment, check=False, capture_stderr=True)
    assert refused.returncode == 1
    assert b"not the controller that the fingerprint names" in refused.stderr
    assert not (tools / "apt-get.calls").exists()


def _program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
