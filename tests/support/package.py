"""The Debian packages as tools/package builds them."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ROOT = Path(__file__).parents[2]


@cache
def release_key() -> Ed25519PrivateKey:
    """Signs the releases that an installed panel of these packages takes."""
    return Ed25519PrivateKey.generate()


@cache
def packages() -> dict[str, Path]:
    """By their names. Built once a test process, in place: the tests that install them run in one."""
    keys = ROOT / "build" / "release-keys.pem"
    keys.parent.mkdir(exist_ok=True)
    public = release_key().public_key()
    keys.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    environment = {**os.environ, "SVC_RELEASE_KEYS": str(keys)}
    built = subprocess.run(
        ["tools/package"], cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=900
    )
    assert built.returncode == 0, built.stderr
    built_files = [ROOT / word for word in built.stdout.split() if word.endswith(".deb")]
    return {path.name.partition("_")[0]: path for path in built_files}
