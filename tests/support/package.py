"""The Debian packages as tools/package builds them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

ROOT = Path(__file__).parents[2]
_BUILT = ROOT / "build" / "tests-packages"
_SOURCES = (
    "pyproject.toml",
    "requirements.lock",
    "svc",
    "actors",
    "http",
    "console",
    "nodeagent",
    "tools/package",
    "tools/packages",
    "tools/monitoring",
    "tools/release_archive.py",
    "tests/support/package.py",
)
_NOT_PACKED = {"__pycache__", "node_modules"}
_KEPT_SECONDS = 2 * 3600


@cache
def release_key() -> Ed25519PrivateKey:
    """Signs the releases that an installed panel of these packages takes."""
    key = load_pem_private_key((_built() / "release-key.pem").read_bytes(), password=None)
    assert isinstance(key, Ed25519PrivateKey)
    return key


def packages() -> dict[str, Path]:
    """By their names."""
    return {path.name.partition("_")[0]: path for path in _built().glob("*.deb")}


@cache
def _built() -> Path:
    """The folder of the packages of this tree, built by the first process of tests that asks: others beside it wait."""
    folder = _BUILT / _digest()
    _BUILT.mkdir(parents=True, exist_ok=True)
    with (_BUILT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            for other in _BUILT.glob("*/"):
                # Tests of another process may go on with what was built before somebody changed this tree.
                if time.time() - other.stat().st_mtime > _KEPT_SECONDS or other.name == "new":
                    shutil.rmtree(other)
            _build(_BUILT / "new")
            (_BUILT / "new").rename(folder)
    return folder


def _build(folder: Path) -> None:
    folder.mkdir()
    key = Ed25519PrivateKey.generate()
    private, public = folder / "release-key.pem", folder / "release-keys.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    # Debian's default compression takes two minutes of processor time for all three, and seconds of each installation.
    environment = {**os.environ, "SVC_RELEASE_KEYS": str(public), "DPKG_DEB_COMPRESSOR_TYPE": "zstd"}
    built = subprocess.run(
        ["tools/package"], cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=900
    )
    assert built.returncode == 0, built.stderr
    for word in built.stdout.split():
        if word.endswith(".deb"):
            shutil.move(ROOT / word, folder)


def _digest() -> str:
    found = hashlib.sha256()
    for path in _source_files():
        found.update(f"{path} {path.stat().st_size}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _source_files() -> Iterator[Path]:
    for name in _SOURCES:
        if (ROOT / name).is_file():
            yield ROOT / name
        for folder, folders, files in os.walk(ROOT / name):
            folders[:] = sorted(each for each in folders if each not in _NOT_PACKED and not each.endswith(".egg-info"))
            yield from (Path(folder) / each for each in sorted(files))
