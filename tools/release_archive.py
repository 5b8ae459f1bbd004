"""The archive of a release of the panel, and its signed manifest: what a panel updates itself from (docs/updates.md).

    python -m tools.release_archive TREE FOLDER VERSION KEY

TREE is the package's content of /usr/lib/svc/panel; KEY is the private Ed25519 key, PEM, that signs. Both files are
written into FOLDER, the manifest last, so that a reader meanwhile finds the previous release.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from svc_actors.panel.releases.manifest import FILE, Archive, Manifest, signed

_OLDEST_PACKAGE: Final = Path(__file__).parent / "packages" / "panel" / "oldest-package"
_MIGRATIONS: Final = Path("svc_actors/store/migrations")
_COMPONENTS: Final = ("controller", "panel", "shared")


def make_release(tree: Path, folder: Path, version: str, key: Ed25519PrivateKey, *, level: int = 6) -> Manifest:
    """`level` of the compression."""
    architecture = subprocess.run(
        ["dpkg", "--print-architecture"], check=True, capture_output=True, text=True
    ).stdout.strip()
    archive = folder / f"svc-panel_{version}_{architecture}.tar.gz"
    with gzip.open(archive, "wb", level) as packed, tarfile.open(fileobj=packed, mode="w|") as entries:
        for path in sorted(tree.iterdir()):
            entries.add(path, path.name, filter=_by_root)
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    manifest = Manifest(
        product="svc-panel",
        version=version,
        architecture=architecture,
        made_at=datetime.now(UTC),
        follows=_release_before(tree) or version,
        package=_OLDEST_PACKAGE.read_text().strip(),
        archive=Archive(
            name=archive.name,
            size=archive.stat().st_size,
            sha256=digest,
            unpacked=sum(path.stat().st_size for path in tree.rglob("*") if path.is_file()),
        ),
    )
    new = folder / f"{FILE}.new"
    new.write_text(signed(manifest, key))
    new.rename(folder / FILE)
    return manifest


def _by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def _migrations(tree: Path) -> dict[str, int]:
    """The newest number of each component."""
    return {
        component: max((int(file.name[:4]) for file in (tree / _MIGRATIONS / component).glob("*.sql")), default=0)
        for component in _COMPONENTS
    }


def _release_before(tree: Path) -> str | None:
    """The release before, which works without the migrations of this one; chosen as `svc_actors.store.migrate` does."""
    releases = json.loads((tree / _MIGRATIONS / "releases.json").read_text())
    return next((name for name, known in reversed(releases.items()) if known != _migrations(tree)), None)


if __name__ == "__main__":
    _tree, _folder, _version, _key = sys.argv[1:]
    _private = load_pem_private_key(Path(_key).read_bytes(), None)
    if not isinstance(_private, Ed25519PrivateKey):
        sys.exit(f"{_key} is no private key of Ed25519")
    print(_folder + "/" + make_release(Path(_tree), Path(_folder), _version, _private).archive.name)
