"""What a host says that its machines can have beneath their system, how libvirt is told, and what is kept of it."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from uuid import uuid4
from xml.etree import ElementTree

import pytest

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import Naming, disks, platform_state, platforms
from svc_nodeagent.hypervisor.domains import BaseImage, domain_xml
from svc_nodeagent.hypervisor.files import RECORD, Folders, MachineRecord, read_record
from svc_nodeagent.hypervisor.processors import Accelerator
from svc_nodeagent.protocol import PLAIN, FailureCode, Firmware, Platform, Tpm
from tests.nodeagent.hypervisor.builders import machine, record

SECURE = Platform(firmware=Firmware.UEFI_SECURE, tpm=Tpm.V2_0)


def describe(folder: Path, name: str, *features: str, machines: str = "pc-q35-*", there: bool = True) -> None:
    folder.mkdir(exist_ok=True)
    code, variables = folder / f"{name}.code", folder / f"{name}.vars"
    for file in (code, variables) if there else ():
        file.touch()
    described = {
        "interface-types": ["uefi"],
        "mapping": {
            "device": "flash",
            "executable": {"filename": str(code), "format": "raw"},
            "nvram-template": {"filename": str(variables), "format": "raw"},
        },
        "targets": [{"architecture": "x86_64", "machines": [machines]}],
        "features": list(features),
    }
    (folder / f"{name}.json").write_text(json.dumps(described))


def found(*folders: Path) -> set[str]:
    return set(platforms.platform_features(folders).found)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def install(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch(mode=0o755)


def test_a_host_says_what_it_has_and_what_to_install_for_the_rest(tmp_path: Path, programs: Path) -> None:
    here = tmp_path / "firmware"
    nothing = platforms.platform_features((here,))
    assert nothing.found == ()
    assert {need: why.split(" install ")[1] for need, why in nothing.lacks.items()} == {
        "uefi": "ovmf there",
        "uefi_secure": "ovmf there",
        "tpm": "swtpm-tools there",
    }

    describe(here, "60-plain", "acpi-s3")
    describe(here, "40-secure", "secure-boot", "enrolled-keys", "requires-smm")
    install(programs, "swtpm", "swtpm_setup")
    everything = platforms.platform_features((here,))
    assert (everything.found, everything.lacks) == (("uefi", "uefi_secure", "tpm"), {})


def test_secure_boot_without_keys_is_none(tmp_path: Path, programs: Path) -> None:
    here = tmp_path / "firmware"
    describe(here, "50-secure", "secure-boot", "requires-smm")
    install(programs, "swtpm")

    assert found(here) == set()


def test_a_firmware_whose_files_are_gone_or_of_another_machine_is_none(tmp_path: Path, programs: Path) -> None:
    here = tmp_path / "firmware"
    describe(here, "1", there=False)
    describe(here, "2", machines="pc-i440fx-*")
    (here / "3.json").write_text("{")
    (here / "4.json").write_text("[]")

    assert found(here) == set()


def test_an_administrators_description_takes_the_place_of_the_packages(tmp_path: Path, programs: Path) -> None:
    theirs, packages = tmp_path / "etc", tmp_path / "usr"
    describe(packages, "60-plain")
    theirs.mkdir()
    (theirs / "60-plain.json").write_text("")

    assert (found(packages), found(theirs, packages)) == ({"uefi"}, set())


def test_what_a_machine_needs_and_the_host_lacks_is_named(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "firmware"
    describe(here, "40-secure", "secure-boot", "enrolled-keys")
    monkeypatch.setattr(platforms.platform_features, "__defaults__", ((here,),))

    platforms.require_platform(PLAIN)
    platforms.require_platform(Platform(firmware=Firmware.UEFI_SECURE))
    with pytest.raises(HostError) as refused:
        platforms.require_platform(SECURE)
    assert (refused.value.code, refused.value.hint) == (FailureCode.CONFLICT, "Install on the node: swtpm-tools.")


def defined(platform: Platform) -> ElementTree.Element:
    made = record(machine()).model_copy(update={"platform": platform})
    xml = domain_xml(made, BaseImage(Path("/b"), "qcow2"), Folders(Path("/d")), Naming(), Accelerator.TCG)
    return ElementTree.fromstring(xml)


def test_a_machine_with_a_bios_is_defined_as_ever() -> None:
    domain = defined(PLAIN)

    assert (domain.find("os").attrib, domain.find("os/nvram"), domain.find("devices/tpm")) == ({}, None, None)  # type: ignore[union-attr]
    assert domain.find("features/smm") is None


@pytest.mark.parametrize(("firmware", "said"), [(Firmware.UEFI, "no"), (Firmware.UEFI_SECURE, "yes")])
def test_secure_boot_is_asked_for_with_keys_or_not_at_all(firmware: Firmware, said: str) -> None:
    domain = defined(Platform(firmware=firmware))

    features = {each.get("name"): each.get("enabled") for each in domain.findall("os/firmware/feature")}
    assert features == {"enrolled-keys": said, "secure-boot": said}
    assert (domain.find("features/smm") is not None) == (firmware is Firmware.UEFI_SECURE)


def test_what_nobody_chose_is_left_out_of_a_record_so_that_earlier_agents_read_it(tmp_path: Path) -> None:
    plain, secure = record(machine()), record(machine()).model_copy(update={"platform": SECURE})
    (tmp_path / "secure.json").write_bytes(secure.stored())

    assert b"platform" not in plain.stored()
    assert read_record(tmp_path / "secure.json") == secure


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Folders, MachineRecord]:
    """A machine whose firmware and TPM have kept something."""
    monkeypatch.setattr(platform_state, "TPM_STATES", tmp_path / "swtpm")
    folders = Folders(tmp_path / "svc")
    folders.create()
    made = record(machine()).model_copy(update={"platform": SECURE})
    folder, tpm = folders.machine(made.vm_id), tmp_path / "swtpm" / str(made.vm_id) / "tpm2"
    folder.mkdir()
    tpm.mkdir(parents=True)
    (folder / RECORD).write_bytes(made.stored())
    (folder / "disk-0.qcow2").write_bytes(b"disk")
    folders.nvram(made.vm_id).write_bytes(b"variables")
    (tpm / "tpm2-00.permall").write_bytes(b"seeds")
    (tpm / ".lock").touch()
    return folders, made


def test_what_is_packed_is_put_back_in_the_place_of_what_came_since(
    kept: tuple[Folders, MachineRecord], tmp_path: Path
) -> None:
    folders, made = kept
    tpm = tmp_path / "swtpm" / str(made.vm_id) / "tpm2"
    content = platform_state.packed(folders, made.vm_id)
    folders.nvram(made.vm_id).write_bytes(b"later")
    (tpm / "tpm2-00.permall").write_bytes(b"later")
    (tpm / "tpm2-00.volatilestate").write_bytes(b"later")

    for _ in range(2):
        platform_state.restore_state(folders, made.vm_id, content)

    assert folders.nvram(made.vm_id).read_bytes() == b"variables"
    assert {path.name: path.read_bytes() for path in tpm.iterdir()} == {"tpm2-00.permall": b"seeds"}


def test_of_a_machine_that_never_ran_nothing_comes_back(kept: tuple[Folders, MachineRecord], tmp_path: Path) -> None:
    folders, made = kept
    empty = platform_state.packed(folders, uuid4())

    platform_state.restore_state(folders, made.vm_id, empty)

    assert not folders.nvram(made.vm_id).exists()
    assert not (tmp_path / "swtpm" / str(made.vm_id)).exists()


def tar(name: str, *, kind: bytes = tarfile.REGTYPE) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as made:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/shadow"
        made.addfile(member, io.BytesIO())
    return content.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        tar("../machine.json"),
        tar("/etc/cron.d/own"),
        tar("tpm2/../../own"),
        tar("tpm2/.hidden"),
        tar("nvram.fd", kind=tarfile.SYMTYPE),
        tar("tpm2/tpm2-00.permall", kind=tarfile.LNKTYPE),
        b"not a tar at all".ljust(512, b"x"),
    ],
)
def test_what_is_no_such_state_changes_nothing(content: bytes, kept: tuple[Folders, MachineRecord]) -> None:
    folders, made = kept
    before = platform_state.packed(folders, made.vm_id)

    with pytest.raises(HostError) as refused:
        platform_state.restore_state(folders, made.vm_id, content)

    assert refused.value.code is FailureCode.INVALID
    assert platform_state.packed(folders, made.vm_id) == before


def test_a_disk_that_is_kept_keeps_what_it_may_be_sealed_to(
    kept: tuple[Folders, MachineRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the agent died after the TPM was removed, and before the rest was."""
    folders, made = kept
    content = platform_state.packed(folders, made.vm_id)

    for _ in range(2):
        disks.retain(folders, made.vm_id)
        platform_state.remove_tpm(made.vm_id)

    folder = folders.retained / str(made.vm_id)
    assert (folder / "platform.tar").read_bytes() == content
    assert sorted(path.name for path in folder.iterdir()) == ["disk-0.qcow2", "machine.json", "platform.tar"]
