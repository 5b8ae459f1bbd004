"""The definition of a machine: what an auditor of the host would look for."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID
from xml.etree import ElementTree

import libvirt
import pytest

from svc_nodeagent.hypervisor.domains import (
    METADATA_NAMESPACE,
    BaseImage,
    domain_cause,
    domain_state,
    domain_xml,
    lifecycle_cause,
    lifecycle_state,
    serial_path,
)
from svc_nodeagent.hypervisor.files import Folders
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.processors import Accelerator
from svc_nodeagent.protocol import DiskSpec, DomainState, MachineSpec, NetworkSpec, StateCause
from tests.nodeagent.hypervisor.builders import machine, network, nic, record

FOLDERS = Folders(Path("/var/lib/svc"))
BASE = BaseImage(Path("/var/lib/svc/images/sha256-0.raw"), "raw")


def defined(spec: MachineSpec, accelerator: Accelerator = Accelerator.TCG) -> ElementTree.Element:
    return ElementTree.fromstring(domain_xml(record(spec), BASE, FOLDERS, Naming(), accelerator))


def test_the_domain_is_the_machine_and_says_so() -> None:
    spec = machine()
    domain = defined(spec)
    assert domain.findtext("uuid") == str(spec.vm_id)
    assert Naming().machine(UUID(domain.findtext("uuid")), str(domain.findtext("name"))) == spec.vm_id
    assert domain.findtext("title") == spec.name
    element = domain.find(f"metadata/{{{METADATA_NAMESPACE}}}machine")
    assert element is not None
    assert element.get("id") == str(spec.vm_id)


def test_a_domain_of_the_same_uuid_under_another_name_is_not_ours() -> None:
    assert Naming().machine(machine().vm_id, "someone-elses") is None


def test_nothing_listens_on_a_network() -> None:
    domain = defined(machine())
    assert {listen.get("type") for listen in domain.iter("listen")} == {"socket"}
    assert all(graphics.get("port") is None for graphics in domain.iter("graphics"))
    assert not [device for device in domain.find("devices") or () if device.get("type") in ("tcp", "udp", "telnet")]


def test_every_file_is_named_with_its_format_and_none_is_relabelled() -> None:
    domain = defined(machine(disks=(DiskSpec(index=0, size_gib=1), DiskSpec(index=1, size_gib=2))))
    for disk in domain.iter("disk"):
        driver, store = disk.find("driver"), disk.find("backingStore")
        assert driver is not None
        assert driver.get("type") in ("qcow2", "raw")
        if driver.get("type") == "qcow2":
            assert store is not None, "without a backingStore element libvirt looks into the file"
    backing = domain.find("devices/disk/backingStore")
    assert backing is not None
    assert [element.get("type") for element in backing.iter("format")] == ["raw"]
    for source in domain.iterfind("devices/disk//source"):
        label = source.find("seclabel")
        assert label is not None
        assert label.get("relabel") == "no"


def test_each_nic_is_joined_to_the_tap_of_its_nic_which_libvirt_leaves_alone() -> None:
    spec = machine(network("10.213.0.2", "10.213.0.3"))
    targets = [target for target in defined(spec).iterfind("devices/interface/target")]
    assert [target.get("dev") for target in targets] == [Naming().tap(nic.nic_id) for nic in spec.network.nics]
    assert {target.get("managed") for target in targets} == {"no"}
    assert all(len(str(target.get("dev"))) <= 15 for target in targets)


def test_a_nic_with_a_larger_mtu_is_told_to_the_guest() -> None:
    spec = machine(NetworkSpec(nics=(nic(mtu=9000),)))
    assert [mtu.get("size") for mtu in defined(spec).iter("mtu")] == ["9000"]


@pytest.mark.parametrize(("accelerator", "kind"), [(Accelerator.KVM, "kvm"), (Accelerator.TCG, "qemu")])
def test_the_accelerator_decides_the_kind_of_domain(accelerator: Accelerator, kind: str) -> None:
    assert defined(machine(), accelerator).get("type") == kind


def test_a_hostile_name_stays_text() -> None:
    spec = machine().model_copy(update={"name": "</title><devices/>&\u2028"})
    domain = defined(spec)
    assert domain.findtext("title") == spec.name
    assert len(domain.findall("devices")) == 1


def test_a_guest_whose_emulator_crashed_is_not_called_stopped() -> None:
    off = libvirt.VIR_DOMAIN_SHUTOFF
    assert domain_state(off, libvirt.VIR_DOMAIN_SHUTOFF_CRASHED) is DomainState.CRASHED
    assert domain_state(off, libvirt.VIR_DOMAIN_SHUTOFF_SHUTDOWN) is DomainState.STOPPED


def test_a_definition_that_changed_is_no_change_of_state() -> None:
    assert lifecycle_state(libvirt.VIR_DOMAIN_EVENT_DEFINED, 0) is None
    assert lifecycle_state(libvirt.VIR_DOMAIN_EVENT_UNDEFINED, 0) is DomainState.ABSENT


def test_why_a_guest_is_off_is_told_apart() -> None:
    stopped, off = libvirt.VIR_DOMAIN_EVENT_STOPPED, libvirt.VIR_DOMAIN_SHUTOFF

    assert lifecycle_state(stopped, libvirt.VIR_DOMAIN_EVENT_STOPPED_FAILED) is DomainState.CRASHED
    assert lifecycle_state(stopped, libvirt.VIR_DOMAIN_EVENT_STOPPED_SHUTDOWN) is DomainState.STOPPED
    assert lifecycle_cause(stopped, libvirt.VIR_DOMAIN_EVENT_STOPPED_SHUTDOWN) is StateCause.GUEST
    assert domain_cause(off, libvirt.VIR_DOMAIN_SHUTOFF_DESTROYED) is StateCause.FORCED
    assert domain_cause(off, libvirt.VIR_DOMAIN_SHUTOFF_UNKNOWN) is None


def test_a_stopped_machine_has_no_serial_terminal() -> None:
    assert serial_path(domain_xml(record(machine()), BASE, FOLDERS, Naming(), Accelerator.TCG)) is None
