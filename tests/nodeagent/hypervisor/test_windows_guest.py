"""A guest that takes a Windows' part over the real virtio channel: QEMU's own agent, in a Linux that calls itself one.

The first boot's file is called on it as it is on Windows, whose separators are letters like others here.
"""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import LibvirtHost, Naming
from svc_nodeagent.hypervisor.windows import FIRST_BOOT
from svc_nodeagent.protocol import (
    ConsoleKind,
    FailureCode,
    VmCreate,
    VmForceStop,
    VmWindowsPassword,
    VmWindowsReport,
    WindowsReport,
)
from tests.nodeagent.hypervisor.builders import image, machine, seed, silent
from tests.nodeagent.hypervisor.console_reader import ConsoleReader
from tests.support.guest import sha512_crypt

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

ACCOUNT = "administrator"
OWN, ORDERED = "Kelp-marble-41", "Otter-lantern-72"


async def test_a_guest_is_given_its_password_once_its_first_boot_has_ended(
    host: LibvirtHost, demo_image: Path, naming: Naming
) -> None:
    spec = machine(seeded=seed(ACCOUNT, password_hash=sha512_crypt(OWN)))
    vm_id, domain = spec.vm_id, naming.domain(spec.vm_id)
    await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
    early = await reported(host, vm_id)
    console = ConsoleReader(await host.open_console(vm_id, ConsoleKind.SERIAL))
    await console.until("login:")
    await until_agent_answers(domain)

    with pytest.raises(HostError) as linux:
        await host.perform(VmWindowsPassword(vm_id=vm_id, account=ACCOUNT, password=ORDERED), silent)
    await in_guest(domain, "echo ID=mswindows > /etc/os-release")
    during = await reported(host, vm_id)
    await in_guest(domain, f"""printf '{{"password": "{OWN}"}}' > '/{FIRST_BOOT}'""")
    with trio.fail_after(300):
        while not (after := await reported(host, vm_id)).booted:
            await trio.sleep(0.2)
    await host.perform(VmWindowsPassword(vm_id=vm_id, account=ACCOUNT, password=ORDERED), silent)
    await console.log_in(ACCOUNT, ORDERED)
    with pytest.raises(HostError) as refused:
        await host.perform(VmWindowsPassword(vm_id=vm_id, account="nobody-here", password=ORDERED), silent)
    await host.perform(VmForceStop(vm_id=vm_id), silent)
    off = await reported(host, vm_id)

    assert linux.value.code is FailureCode.CONFLICT
    assert [each.booted for each in (early, during, after, off)] == [False, False, True, False]
    assert after.password == OWN
    assert refused.value.code is FailureCode.HOST
    assert ORDERED not in f"{refused.value.message} {refused.value.hint}"


async def reported(host: LibvirtHost, vm_id: UUID) -> WindowsReport:
    report = await host.perform(VmWindowsReport(vm_id=vm_id), silent)
    assert isinstance(report, WindowsReport)
    return report


async def ask_agent(domain: str, command: str, **arguments: object) -> object:
    """None where the guest's agent does not answer."""
    asked = json.dumps({"execute": command, "arguments": arguments})
    words = ["virsh", "qemu-agent-command", domain, asked, "--timeout", "5"]
    ended = await trio.run_process(words, check=False, capture_stdout=True, capture_stderr=True)
    return json.loads(ended.stdout)["return"] if ended.returncode == 0 else None


async def until_agent_answers(domain: str) -> None:
    with trio.fail_after(300):
        while await ask_agent(domain, "guest-ping") is None:
            await trio.sleep(0.5)  # the guest's own start


async def in_guest(domain: str, script: str) -> None:
    assert await ask_agent(domain, "guest-exec", path="sh", arg=["-c", script]) is not None
