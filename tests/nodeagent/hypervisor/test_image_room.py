"""The room that images take: what goes first on a short disk, and what never gets in."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import httpx
import pytest
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import images as images_module
from svc_nodeagent.hypervisor.images import file_name
from svc_nodeagent.protocol import FailureCode
from tests.nodeagent.hypervisor.builders import machine, record, silent
from tests.nodeagent.hypervisor.publisher import CONTENT, Publisher, cache, published


async def test_on_a_short_disk_the_images_that_nobody_uses_go_the_longest_unasked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = []
    for number in range(4):
        content = CONTENT + bytes([number])
        images, folders = cache(tmp_path, Publisher(content))
        specs.append(published(content))
        await images.ensure(specs[-1], silent)
    used, recent, older, oldest = specs
    for spec, hours in ((used, 9), (older, 3), (oldest, 5)):
        asked = time.time() - 3600 * hours
        os.utime(folders.images / f"{spec.image_id}.json", (asked, asked))
    standing = record(machine(), file_name(used))
    folders.machine(standing.vm_id).mkdir()
    (folders.machine(standing.vm_id) / "machine.json").write_text(standing.model_dump_json())

    monkeypatch.setattr(images_module, "_SHORT_BELOW_SHARE", 0.0)
    monkeypatch.setattr(images_module, "_SHORT_BELOW_BYTES", 0)
    with_space = await images.make_room()
    monkeypatch.setattr(images_module, "_SHORT_BELOW_SHARE", 2.0)
    short = await images.make_room()

    assert with_space == []
    assert short == [oldest.image_id, older.image_id]
    assert {kept.image_id for kept in await images.cached()} == {used.image_id, recent.image_id}


async def test_an_image_that_is_asked_for_again_is_not_the_first_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = published()
    images, folders = cache(tmp_path, Publisher())
    await images.ensure(spec, silent)
    os.utime(folders.images / f"{spec.image_id}.json", (0, 0))
    monkeypatch.setattr(images_module, "_SHORT_BELOW_SHARE", 2.0)

    await images.ensure(spec, silent)

    assert await images.make_room() == []


async def test_an_image_with_machines_on_it_is_not_removed(tmp_path: Path) -> None:
    spec = published()
    images, folders = cache(tmp_path, Publisher())
    await images.ensure(spec, silent)
    standing = record(machine(), file_name(spec))
    folder = folders.machine(standing.vm_id)
    folder.mkdir()
    (folder / "machine.json").write_text(standing.model_dump_json())
    with pytest.raises(HostError) as refusal:
        await images.remove(spec.image_id)
    assert refusal.value.code is FailureCode.CONFLICT
    (folder / "machine.json").unlink()
    await images.remove(spec.image_id)
    await images.remove(spec.image_id)
    assert list(folders.images.iterdir()) == []


async def test_a_file_that_two_images_share_stays_until_the_second_goes(tmp_path: Path) -> None:
    spec = published()
    other = spec.model_copy(update={"image_id": uuid4()})
    images, folders = cache(tmp_path, Publisher())
    await images.ensure(spec, silent)
    await images.ensure(other, silent)
    await images.remove(spec.image_id)
    assert (folders.images / file_name(spec)).exists()
    assert [kept.image_id for kept in await images.cached()] == [other.image_id]


class _FileSystem(NamedTuple):
    f_bavail: int
    f_blocks: int
    f_frsize: int = 1


TIB, GIB = 1024**4, 1024**3


@pytest.mark.parametrize(
    ("size", "free", "to_come", "fits"),
    [
        (50 * TIB, TIB, 0, True),
        (50 * TIB, 3 * GIB, 0, True),
        (50 * TIB, 2 * GIB - 1, 0, False),
        (50 * TIB, 3 * GIB, GIB, True),
        (50 * TIB, 3 * GIB, GIB + 1, False),
        (20 * GIB, 2 * GIB, 0, True),
    ],
)
async def test_what_is_taken_in_leaves_a_node_a_floor_and_no_share_of_a_large_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, free: int, to_come: int, fits: bool
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: _FileSystem(free, size))
    with nullcontext() if fits else pytest.raises(HostError, match="ran short"):
        await images_module.require_room(tmp_path, "a disk", to_come)


async def test_an_image_that_does_not_fit_is_refused_before_it_fills_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc_nodeagent.hypervisor.images.FREE_SPACE_KEPT_BYTES", 2**60)
    site = Publisher()
    images, folders = cache(tmp_path, site)
    with pytest.raises(HostError) as refusal:
        await images.ensure(published(), silent)
    assert refusal.value.code is FailureCode.CAPACITY
    assert site.sent == 0
    assert list(folders.images.iterdir()) == []


@pytest.mark.parametrize("declares", [True, False])
async def test_a_file_larger_than_its_size_was_said_to_be_is_ended_and_discarded(
    tmp_path: Path, declares: bool
) -> None:
    site = Publisher()
    headers = {"Content-Length": str(len(CONTENT))} if declares else {}
    images, folders = cache(tmp_path, lambda _: httpx.Response(200, headers=headers, content=site._body(CONTENT)))

    with pytest.raises(HostError, match="larger than the 0 MiB") as refusal:
        await images.ensure(published().model_copy(update={"size_bytes": 200_000}), silent)

    assert refusal.value.code is FailureCode.INVALID
    assert site.sent <= 262_144
    assert list(folders.images.iterdir()) == []


async def test_an_endless_file_of_unknown_size_is_ended_and_discarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc_nodeagent.hypervisor.images.MOST_IMAGE_BYTES", 300_000)
    site = Publisher()
    images, folders = cache(tmp_path, lambda _: httpx.Response(200, content=site._body(CONTENT)))

    with pytest.raises(HostError) as refusal:
        await images.ensure(published(), silent)

    assert refusal.value.code is FailureCode.INVALID
    assert site.sent <= 393_216
    assert list(folders.images.iterdir()) == []


async def test_a_download_leaves_the_host_its_room_also_when_others_fill_the_disk_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc_nodeagent.hypervisor.images._LOOKED_AT_EVERY", 200_000)
    site = Publisher()

    async def filled(percent: int, message: str) -> None:
        await trio.lowlevel.checkpoint()
        monkeypatch.setattr("svc_nodeagent.hypervisor.images.FREE_SPACE_KEPT_BYTES", 2**60)

    images, _ = cache(tmp_path, site)

    with pytest.raises(HostError) as refusal:
        await images.ensure(published(), filled)

    assert refusal.value.code is FailureCode.CAPACITY
    assert site.sent < len(CONTENT)
