"""What an image may be: a plain disk, of the format that it says, with nothing in its header that QEMU would follow."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.images import file_name
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import FailureCode, ImageFormat
from tests.nodeagent.hypervisor.builders import silent
from tests.nodeagent.hypervisor.publisher import Publisher, cache, published


async def test_an_image_that_names_files_of_the_host_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret.raw"
    secret.write_bytes(b"\0" * 65536)
    evil = tmp_path / "evil.qcow2"
    await run_program("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", secret, evil)
    spec = published(evil.read_bytes()).model_copy(update={"format": ImageFormat.QCOW2})
    images, folders = cache(tmp_path / "data", Publisher(evil.read_bytes()))
    with pytest.raises(HostError) as refusal:
        await images.ensure(spec, silent)
    assert refusal.value.code is FailureCode.INVALID
    assert list(folders.images.iterdir()) == []


async def test_what_is_no_disk_image_is_refused(tmp_path: Path) -> None:
    images, folders = cache(tmp_path, Publisher())
    with pytest.raises(HostError) as refusal:
        await images.ensure(published().model_copy(update={"format": ImageFormat.QCOW2}), silent)
    assert refusal.value.code is FailureCode.INVALID
    assert list(folders.images.iterdir()) == []


@pytest.mark.parametrize(
    ("offset", "value", "why"),
    [
        (60, struct.pack(">I", 65_535), "snapshots"),
        (72, struct.pack(">Q", 4), "other files"),
        (72, struct.pack(">Q", 1 << 40), "features"),
        (8, struct.pack(">QI", 512, 8), "other files"),
        (32, struct.pack(">I", 1), "encrypted"),
        (36, struct.pack(">I", 2**30), "larger"),
        (24, struct.pack(">Q", 2**62), "larger"),
        (20, struct.pack(">I", 63), "size"),
        (4, struct.pack(">I", 9), "version"),
    ],
)
async def test_a_header_that_would_mislead_or_tire_qemu_is_refused_before_qemu_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int, value: bytes, why: str
) -> None:
    plain = tmp_path / "plain.qcow2"
    await run_program("qemu-img", "create", "-q", "-f", "qcow2", plain, "1M")
    crafted = bytearray(plain.read_bytes())
    crafted[offset : offset + len(value)] = value
    spec = published(bytes(crafted)).model_copy(update={"format": ImageFormat.QCOW2})
    images, folders = cache(tmp_path / "data", Publisher(bytes(crafted)))
    monkeypatch.setattr("svc_nodeagent.hypervisor.images.inspect", None)

    with pytest.raises(HostError, match=why) as refusal:
        await images.ensure(spec, silent)

    assert refusal.value.code is FailureCode.INVALID
    assert list(folders.images.iterdir()) == []


async def test_a_plain_image_is_taken(tmp_path: Path) -> None:
    plain = tmp_path / "plain.qcow2"
    await run_program("qemu-img", "create", "-q", "-f", "qcow2", plain, "1G")
    spec = published(plain.read_bytes()).model_copy(update={"format": ImageFormat.QCOW2})
    images, folders = cache(tmp_path / "data", Publisher(plain.read_bytes()))

    await images.ensure(spec, silent)

    assert (folders.images / file_name(spec)).exists()


@pytest.mark.parametrize("form", ["vmdk", "vdi", "vpc"])
async def test_an_image_of_another_format_is_not_taken_for_what_it_is_not(tmp_path: Path, form: str) -> None:
    """A VMDK's descriptor names the files of its extents, any on the host."""
    other = tmp_path / "other"
    await run_program("qemu-img", "create", "-q", "-f", form, other, "1M")
    content = other.read_bytes()
    images, folders = cache(tmp_path / "data", Publisher(content))

    with pytest.raises(HostError) as refusal:
        await images.ensure(published(content).model_copy(update={"format": ImageFormat.QCOW2}), silent)

    assert refusal.value.code is FailureCode.INVALID
    assert list(folders.images.iterdir()) == []
