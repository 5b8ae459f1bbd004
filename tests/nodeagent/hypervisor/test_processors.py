"""A guest is given another processor: of its definition that alone changes, and the guest has it once started anew."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from uuid import UUID

import pytest
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import LibvirtHost, Naming
from svc_nodeagent.hypervisor.files import read_record
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.hypervisor.processors import Accelerator, cpu_element, with_processor
from svc_nodeagent.protocol import (
    CpuMode,
    DomainResult,
    DomainState,
    FailureCode,
    VmCpuSet,
    VmCreate,
    VmShutdown,
    VmStart,
)
from tests.nodeagent.hypervisor.builders import ADDRESS, image, machine, network, record, silent

NAMED = "<cpu mode='custom' match='exact' check='none'>\n    <model fallback='allow'>Nehalem</model>\n  </cpu>"


@pytest.mark.parametrize("cpu", ["<cpu mode='host-passthrough' check='none' migratable='on'/>", NAMED])
def test_of_a_definition_the_processor_alone_is_rewritten(cpu: str) -> None:
    before = "<domain type='kvm'>\n  <cputune>\n    <shares>7</shares>\n  </cputune>\n  "
    after = "\n  <clock offset='utc'/>\n  <title>a &lt;cpu&gt; &#246;</title>\n</domain>\n"

    changed = with_processor(f"{before}{cpu}{after}", cpu_element(CpuMode.MAXIMUM, Accelerator.KVM))

    assert changed == f'{before}<cpu mode="maximum" check="none" />{after}'


def test_an_emulated_guest_cannot_have_the_hosts_own_processor() -> None:
    with pytest.raises(HostError) as refused:
        cpu_element(CpuMode.HOST_PASSTHROUGH, Accelerator.TCG)

    assert refused.value.code is FailureCode.INVALID


def test_a_record_without_a_chosen_processor_is_read_by_agents_that_know_none() -> None:
    chosen = record(machine()).model_copy(update={"cpu_mode": CpuMode.BASELINE})

    assert b"cpu_mode" not in record(machine()).stored()
    assert type(chosen).model_validate_json(chosen.stored()) == chosen


def definition(naming: Naming, vm_id: UUID, *flags: str) -> str:
    command = ["virsh", "dumpxml", *flags, naming.domain(vm_id)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def parts(xml: str) -> tuple[str, str]:
    """The processor, and all the rest."""
    before, element, after = re.split(r"(?s)(<cpu [^\n]*/>\n|<cpu .*?</cpu>\n)", xml, maxsplit=1)
    return element, before + after


async def guests_processor(data_folder: Path, vm_id: UUID, *, boot: int) -> str:
    """As the guest's kernel says in this boot, once the guest is up: then it hears the power button."""
    log = trio.Path(data_folder / "machines" / str(vm_id) / "serial.log")
    with trio.fail_after(300):
        while (said := await log.read_text(errors="replace")).count("login: ") < boot:
            await trio.sleep(0.1)
    found: list[str] = re.findall(r"smpboot: CPU0: (.*)", said)
    return found[boot - 1]


@pytest.mark.system
@pytest.mark.isolated
@pytest.mark.own_host
async def test_a_guest_keeps_its_processor_until_it_is_stopped_and_started_or_restarted(
    host: LibvirtHost, demo_image: Path, data_folder: Path, naming: Naming
) -> None:
    spec = machine(network(ADDRESS))
    vm_id = spec.vm_id
    await host.perform(VmCreate(machine=spec, image=image(demo_image), start=False), silent)
    change = VmCpuSet(vm_id=vm_id, cpu_mode=CpuMode.BASELINE, before=CpuMode.DEFAULT, restart=False)
    await host.perform(change, silent)
    await host.perform(VmStart(vm_id=vm_id, network=spec.network), silent)
    assert "Nehalem" in await guests_processor(data_folder, vm_id, boot=1)
    stored, live = definition(naming, vm_id, "--inactive"), definition(naming, vm_id)

    # While it runs: the definition has it, the guest does not
    change = VmCpuSet(vm_id=vm_id, cpu_mode=CpuMode.MAXIMUM, before=CpuMode.BASELINE, restart=False)
    result = await host.perform(change, silent)
    changed = definition(naming, vm_id, "--inactive")
    assert isinstance(result, DomainResult)
    assert result.state is DomainState.RUNNING
    assert parts(changed) == ("<cpu mode='maximum' check='none'/>\n", parts(stored)[1])
    assert parts(definition(naming, vm_id))[0] == parts(live)[0], "what is told of the guest that runs"

    # Stopped and started
    await host.perform(VmShutdown(vm_id=vm_id), silent)
    await host.perform(VmStart(vm_id=vm_id, network=spec.network), silent)
    assert "Nehalem" not in await guests_processor(data_folder, vm_id, boot=2)
    assert parts(definition(naming, vm_id, "--inactive"))[1] == parts(stored)[1]

    # Restarted
    change = VmCpuSet(vm_id=vm_id, cpu_mode=CpuMode.BASELINE, before=CpuMode.MAXIMUM, restart=True)
    await host.perform(change, silent)
    assert "Nehalem" in await guests_processor(data_folder, vm_id, boot=3)


@pytest.mark.system
@pytest.mark.isolated
@pytest.mark.own_host
async def test_a_guest_that_does_not_shut_down_keeps_processor_and_definition(
    host: LibvirtHost, demo_image: Path, data_folder: Path, naming: Naming, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unheard(*_: object) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(Guests, "press_power_button", unheard)
    spec = machine()
    await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
    path = data_folder / "machines" / str(spec.vm_id) / "machine.json"
    before = definition(naming, spec.vm_id, "--inactive"), read_record(path)

    change = VmCpuSet(
        vm_id=spec.vm_id, cpu_mode=CpuMode.MAXIMUM, before=CpuMode.DEFAULT, restart=True, timeout_seconds=1.0
    )
    with pytest.raises(HostError) as refused:
        await host.perform(change, silent)

    assert refused.value.code is FailureCode.TIMED_OUT
    assert (definition(naming, spec.vm_id, "--inactive"), read_record(path)) == before


def test_the_guest_has_three_minutes() -> None:
    assert VmCpuSet.model_fields["timeout_seconds"].default == 180.0
