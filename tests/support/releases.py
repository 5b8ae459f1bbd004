"""Releases of the agent for tests: wheels made of this one's code, with another version and other contents."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from svc.controller.nodes.package import agent_package, agent_version
from svc_actors.controller.nodes.upgrades import AgentRelease
from svc_nodeagent.releases import Releases, locks_digest

ROOT = Path(__file__).parents[2]


def wheel_of(version: str, changes: Mapping[str, Callable[[str], str]] | None = None) -> bytes:
    """This agent's wheel as a release of `version`. `changes` rewrite files of the package by their names."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(agent_package())) as ours, zipfile.ZipFile(out, "w") as theirs:
        for name in ours.namelist():
            data = ours.read(name)
            change = (changes or {}).get(name.removeprefix("svc_nodeagent/"))
            if change is not None:
                data = change(data.decode()).encode()
            if name.endswith("METADATA"):
                data = data.replace(f"\nVersion: {agent_version()}\n".encode(), f"\nVersion: {version}\n".encode())
            theirs.writestr(
                zipfile.ZipInfo(name.replace(f"-{agent_version()}.dist-info", f"-{version}.dist-info")), data
            )
    return out.getvalue()


def kept_release(folder: Path, version: str, wheel: bytes) -> AgentRelease:
    """A wheel as a controller keeps it."""
    digest = hashlib.sha256(wheel).hexdigest()
    folder.mkdir(exist_ok=True)
    file = folder / f"{digest}.whl"
    file.write_bytes(wheel)
    return AgentRelease(f"{version}-{digest[:12]}", version, digest, len(wheel), file)


def installed(data: Path, release: AgentRelease) -> Releases:
    """The first release of a node, whose packages are those that the tests run with."""
    libraries = data / "libraries"
    libraries.mkdir()
    locks = ROOT / "nodeagent" / "svc_nodeagent"
    (libraries / locks_digest(locks)).symlink_to(sysconfig.get_path("purelib"))
    releases = Releases(data)
    releases.switch(releases.install(release.wheel))
    return releases


@contextmanager
def launched(data: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The agent in `data` as its launcher runs it, a process of its own."""
    command = [sys.executable, "-m", "svc_nodeagent.launcher", str(data), *options]
    log = (data / "log").open("a")
    # In a group of its own, which a test may kill whole.
    with (
        log,
        subprocess.Popen(command, cwd=ROOT / "nodeagent", stderr=log, text=True, start_new_session=True) as launcher,
    ):
        try:
            yield launcher
        finally:
            launcher.terminate()
            launcher.wait(30)
