"""A libvirt host for system tests, with names of its own on this machine, and nothing of them left afterwards."""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import libvirt
import pytest
import trio

from svc_nodeagent.hypervisor import LibvirtHost, Naming
from svc_nodeagent.hypervisor.connection import start_daemons
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.protocol import NodeOperation
from tests.nodeagent.hypervisor.builders import FileStream
from tests.nodeagent.hypervisor.killed_host import KILLED, ROOT, Perform
from tests.support.acceleration import tell_of_kvm
from tests.support.image_paths import IMAGES, TOOLS


@pytest.fixture(scope="session")
def naming() -> Naming:
    """Unlike those of any other test process, also of one that was killed and has left something."""
    own = secrets.token_hex(3)
    return Naming(f"svctest{own}-", device_prefix=f"v{own[:3]}", table=f"svctest{own}")


@pytest.fixture
def data_folder() -> Iterator[Path]:
    """Not pytest's own folder, which QEMU's user cannot pass through."""
    folder = Path(tempfile.mkdtemp(prefix="svc-hypervisor-", dir="/var/tmp"))
    folder.chmod(0o711)
    trio.run(tell_of_kvm, folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def demo_image() -> Path:
    image = IMAGES / "demo.qcow2"
    await trio.run_process([TOOLS / "build-demo", image], capture_stderr=True)
    return image


@pytest.fixture
async def rescue_system() -> Path:
    system = IMAGES / "rescue.tar"
    await trio.run_process([TOOLS / "build-rescue", system], capture_stdout=True, capture_stderr=True)
    return system


@pytest.fixture
async def clean_host(naming: Naming) -> AsyncIterator[None]:
    """Whatever the test leaves of its own names is removed, also when it fails."""
    await start_daemons()
    try:
        yield
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 60):
            await trio.to_thread.run_sync(_remove_domains, naming.domain_prefix)
            await HostNetwork(naming, {}).clear()


@pytest.fixture
def host_network(naming: Naming, clean_host: None) -> HostNetwork:
    return HostNetwork(naming, {})


@pytest.fixture
def files() -> dict[str, Path]:
    """What the controller keeps, by digest; the demo image is served for everything else."""
    return {}


@pytest.fixture
async def host(
    data_folder: Path, naming: Naming, clean_host: None, demo_image: Path, files: dict[str, Path]
) -> AsyncIterator[LibvirtHost]:
    async def open_stream(token: str) -> trio.abc.Stream:
        return FileStream(await trio.Path(files.get(token, demo_image)).read_bytes())

    async with LibvirtHost.open(data_folder, open_stream=open_stream, naming=naming) as opened:
        yield opened


@pytest.fixture
def perform(data_folder: Path, naming: Naming, demo_image: Path, clean_host: None) -> Perform:
    async def perform(*operations: NodeOperation, kill_at: str | None = None) -> int:
        """Run operations in a process of their own; gives its status. Anything but a kill is shown."""
        names = (naming.domain_prefix, naming.device_prefix, naming.table)
        done = await trio.run_process(
            [sys.executable, "-m", "tests.nodeagent.hypervisor.run_host", str(data_folder), str(demo_image), *names],
            stdin="\n".join(operation.model_dump_json() for operation in operations).encode(),
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"} | ({"SVC_FAULT_POINT": kill_at} if kill_at else {}),
            cwd=ROOT,
            check=False,
            capture_stdout=True,
            capture_stderr=True,
        )
        assert done.returncode in (0, KILLED), done.stderr.decode()[-3000:]
        return done.returncode

    return perform


def _remove_domains(prefix: str) -> None:
    connection = libvirt.open("qemu:///system")
    try:
        for domain in connection.listAllDomains():
            if domain.name().startswith(prefix):
                if domain.isActive():
                    domain.destroy()
                domain.undefineFlags(libvirt.VIR_DOMAIN_UNDEFINE_NVRAM | libvirt.VIR_DOMAIN_UNDEFINE_TPM)
    finally:
        connection.close()
