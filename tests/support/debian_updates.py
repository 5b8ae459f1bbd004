"""Security updates of packages that a server has, in an archive on its own disk: the same files, another version."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

from tests.support.systemd_root import SystemdRoot

_ARCHIVE = "srv/updates"
_SCRIPTS = ("preinst", "postinst", "prerm", "postrm", "conffiles", "triggers")


def offer_updates(server: SystemdRoot, *names: str) -> None:
    """The server's apt knows this archive alone from now on. It takes the place of Debian's: there is no network."""
    archive = server.folder / _ARCHIVE
    archive.mkdir()
    entries = [_entry(_repacked(server.folder, archive, name)) for name in names]
    index = "\n".join(entries).encode()
    (archive / "Packages").write_bytes(index)
    digest = f" {hashlib.sha256(index).hexdigest()} {len(index)} Packages\n"
    about = "Origin: Debian\nLabel: Debian-Security\nSuite: stable-security\nCodename: bookworm-security\nVersion: 12\n"
    (archive / "Release").write_text(f"{about}Date: Wed, 25 Nov 2026 12:00:00 UTC\nSHA256:\n{digest}")
    apt = server.folder / "etc/apt"
    shutil.rmtree(apt / "sources.list.d", ignore_errors=True)
    (apt / "sources.list").write_text(f"deb [trusted=yes] file:/{_ARCHIVE} ./\n")


def _repacked(root: Path, archive: Path, name: str) -> Path:
    """The installed package again, one version further."""
    control = subprocess.run(
        ["dpkg-query", f"--admindir={root}/var/lib/dpkg", "--status", name], check=True, capture_output=True, text=True
    ).stdout
    control = re.sub(r"^(Status|Conffiles):.*\n( .*\n)*", "", control, flags=re.MULTILINE)
    control = re.sub(r"^Version: (.*)$", r"Version: \1+test1", control, flags=re.MULTILINE)
    tree, info = archive / f"{name}.tree", root / "var/lib/dpkg/info"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(control)
    for kind in _SCRIPTS:
        if (info / f"{name}.{kind}").exists():
            shutil.copy2(info / f"{name}.{kind}", tree / "DEBIAN" / kind)
    for line in (info / f"{name}.list").read_text().split("\n"):
        source, copy = root / line.lstrip("/"), tree / line.lstrip("/")
        if line and source.is_symlink():
            copy.symlink_to(source.readlink())
        elif line and source.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
        elif line and source.exists():
            shutil.copy2(source, copy)
    package = archive / f"{name}.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(package)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    shutil.rmtree(tree)
    return package


def _entry(package: Path) -> str:
    control = subprocess.run(["dpkg-deb", "--field", str(package)], check=True, capture_output=True, text=True).stdout
    content = package.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return f"{control.rstrip()}\nFilename: ./{package.name}\nSize: {len(content)}\nSHA256: {digest}\n"
