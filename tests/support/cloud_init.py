"""cloud-init's own renderers of network configuration, from Debian's packages.

The packages are unpacked next to the images for tests, once for each release. They are not installed: cloud-init would
set up the host itself at its next boot.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path

from tests.support.image_paths import IMAGES

RELEASES = ("bookworm", "trixie")
"""cloud-init 22.4.2, and 25.1."""
RENDERERS = ("netplan", "networkd", "eni", "sysconfig", "network_manager")

_PACKAGES = ("cloud-init", "python3-configobj", "python3-six")
_MODULES = "usr/lib/python3/dist-packages"

_RENDER = """
import importlib, json, sys
from cloudinit import distros, util  # distros first: its imports go in a circle
from cloudinit.net.network_state import parse_net_config_data

util.chownbyname = lambda *names: None  # to accounts that this host may not have
folder, configs = sys.argv[1], json.load(sys.stdin)
settings = {
    "netplan": {"netplan_path": "etc/netplan/50-cloud-init.yaml"},
    "eni": {"eni_path": "etc/network/interfaces"},
    "sysconfig": {
        "control": "etc/sysconfig/network",
        "iface_templates": "%(base)s/network-scripts/ifcfg-%(name)s",
        "route_templates": {
            "ipv4": "%(base)s/network-scripts/route-%(name)s",
            "ipv6": "%(base)s/network-scripts/route6-%(name)s",
        },
    },
}
for name in sys.argv[2:]:
    module = importlib.import_module("cloudinit.net." + name)
    for of, config in configs.items():
        renderer = module.Renderer(settings.get(name, {}))
        state = parse_net_config_data(json.loads(config), renderer=renderer)
        renderer.render_network_state(state, target=folder + "/" + of + "/" + name)
"""
"""As cloud-init itself calls its renderers, with the paths of its distributions."""


def render(release: str, network_configs: Mapping[str, str], into: Path) -> None:
    """What each renderer of this release writes for each `network-config`: the root of a guest, at
    `into/<name of the configuration>/<renderer>`."""
    for name, renderer in product(network_configs, RENDERERS):
        (into / name / renderer).mkdir(parents=True)
    subprocess.run(
        [sys.executable, "-c", _RENDER, into, *RENDERERS],
        input=json.dumps(network_configs).encode(),
        env={**os.environ, "PYTHONPATH": str(_unpacked(release) / _MODULES)},
        cwd=into,
        check=True,
    )


def _unpacked(release: str) -> Path:
    """The folder with the release's cloud-init, downloaded at the first call."""
    folder = IMAGES / f"cloud-init-{release}"
    if not folder.exists():
        IMAGES.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=IMAGES) as work:
            root = Path(work) / "root"
            for package in _downloaded(release, Path(work)):
                subprocess.run(["dpkg-deb", "-x", package, root], check=True)
            try:
                root.rename(folder)
            except OSError:  # another process of the tests was faster
                shutil.rmtree(root)
    return folder


def _downloaded(release: str, work: Path) -> list[Path]:
    """Debian's packages of this release, by apt with lists of its own: the host may be of another release."""
    apt = ["apt-get", "-q", "-o", "APT::Sandbox::User=root"]
    hosts = ["indextargets", "--format", "$(REPO_URI)", "Origin: Debian", "Identifier: Packages"]
    mirrors = subprocess.run([*apt, *hosts], capture_output=True, check=True).stdout.decode().split()
    mirror = mirrors[0] if mirrors else "http://deb.debian.org/debian"
    sources = work / "sources.list"
    sources.write_text(f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} {release} main\n")
    for folder in ("lists/partial", "cache/archives/partial", "packages"):
        (work / folder).mkdir(parents=True)
    own = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": work / "lists",
        "Dir::Cache": work / "cache",
        "Acquire::Languages": "none",
    }
    apt += [part for name, value in own.items() for part in ("-o", f"{name}={value}")]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", *_PACKAGES], cwd=work / "packages", check=True)
    return sorted((work / "packages").glob("*.deb"))
