"""Builds the node agent as a separate wheel from the installed package, so that a host needs no code of the controller.

The build is reproducible: the same sources give the same bytes. The wheel contains the lock files from which the
agent's dependencies are installed (tools/lock-agent). So a host installs, as root, only the locked versions with
matching hashes, whatever its package index offers.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import re
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

from svc_actors.controller.nodes.upgrades import AgentRelease

_PACKAGE = "svc_nodeagent"
_DISTRIBUTION = "svc"
_ALWAYS_NEEDED = ("trio", "pydantic")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def agent_version() -> str:
    return metadata.version(_DISTRIBUTION)


@cache
def agent_package() -> bytes:
    """The wheel's bytes."""
    info = f"{_PACKAGE}-{agent_version()}.dist-info"
    files = dict(_sources())
    files[f"{info}/METADATA"] = _metadata().encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: svc\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/entry_points.txt"] = b"[console_scripts]\nsvc-nodeagent = svc_nodeagent.cli:main\n"
    record = "".join(f"{name},{_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def agent_release(data_dir: Path) -> AgentRelease:
    """The wheel as a file offered to nodes, with its identity."""
    wheel = agent_package()
    digest = hashlib.sha256(wheel).hexdigest()
    folder = data_dir / "agent"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{digest}.whl"
    if not file.exists():
        partial = file.with_suffix(".partial")
        partial.write_bytes(wheel)
        partial.rename(file)
        for other in folder.glob("*.whl"):
            if other != file:
                other.unlink()
    version = agent_version()
    return AgentRelease(f"{version}-{digest[:12]}", version, digest, len(wheel), file)


def _sources() -> Iterator[tuple[str, bytes]]:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise LookupError(f"the package {_PACKAGE} is not installed next to the controller")
    folder = Path(spec.origin).parent
    for file in sorted(folder.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            yield f"{_PACKAGE}/{file.relative_to(folder)}", file.read_bytes()


def requirements() -> list[str]:
    """What the distribution's `node` extra requires, and its base requirements."""
    needed = []
    for requirement in metadata.requires(_DISTRIBUTION) or []:
        name, _, marker = (part.strip() for part in requirement.partition(";"))
        base = re.split(r"[\s\[<>=!~]", name, maxsplit=1)[0]
        if 'extra == "node"' in marker.replace("'", '"') or (not marker and base in _ALWAYS_NEEDED):
            needed.append(name)
    return needed


def _metadata() -> str:
    lines = ["Metadata-Version: 2.1", "Name: svc-nodeagent", f"Version: {agent_version()}", "Requires-Python: >=3.11"]
    return "\n".join([*lines, *(f"Requires-Dist: {requirement}" for requirement in requirements())]) + "\n"


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
