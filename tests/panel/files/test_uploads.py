"""Files that come in parts, within requests of at most 1 MB."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import time
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from svc_webhost.confined.protocol import FreeSpace
from svc_webhost.confined_client import Answer, ConfinedFiles
from tests.panel.files.conftest import Files
from tests.support.site_files import give

CHUNK = 512 << 10


def part(content: bytes, offset: int, length: int = CHUNK) -> dict[str, Any]:
    return {"offset": offset, "data_base64": base64.b64encode(content[offset : offset + length]).decode()}


async def begin(world: Files, path: str, size: int, **more: object) -> str:
    answer = await world.ada.post(world.path("/upload"), {"path": path, "size": size, **more})
    assert answer.status_code == 200, answer.text
    upload: str = answer.json()["id"]
    return upload


async def test_parts_come_at_once_in_any_order_and_again(world: Files) -> None:
    content = os.urandom(5 * CHUNK + 1000)
    upload = await begin(world, "video.mp4", len(content))
    place = world.path(f"/upload/{upload}")
    offsets = [5 * CHUNK, 0, 3 * CHUNK, CHUNK, 2 * CHUNK, 4 * CHUNK, CHUNK // 2, 0]

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for offset in offsets:
            nursery.start_soon(world.ada.put, place, part(content, offset))
    print(f"{len(offsets) * CHUNK / (time.perf_counter() - began) / 1e6:.0f} MB/s")
    shown = (await world.ada.read(place)).json()
    finished = await world.ada.post(f"{place}/finish", {"sha256": hashlib.sha256(content).hexdigest()})
    again = await world.ada.post(f"{place}/finish", {"sha256": hashlib.sha256(content).hexdigest()})

    assert shown["received"] == [{"start": 0, "end": len(content)}]
    assert finished.json()["status"] == "finished"
    assert again.json() == finished.json()
    assert (world.home / "video.mp4").read_bytes() == content
    assert (world.home / "video.mp4").stat().st_uid == world.folder.uid
    assert os.listdir(world.home / ".svc-tmp") == []


async def test_an_interrupted_upload_says_what_is_missing_and_goes_on(world: Files) -> None:
    content = os.urandom(3 * CHUNK)
    upload = await begin(world, "big", len(content))
    place = world.path(f"/upload/{upload}")
    await world.ada.put(place, part(content, 0))
    await world.ada.put(place, part(content, 2 * CHUNK))

    early = await world.ada.post(f"{place}/finish", {"sha256": hashlib.sha256(content).hexdigest()})
    await world.panel.services.files.forget(world.folder)
    shown = (await world.ada.read(place)).json()
    await world.ada.put(place, part(content, CHUNK))
    finished = await world.ada.post(f"{place}/finish", {"sha256": hashlib.sha256(content).hexdigest()})

    assert early.status_code == 409
    assert shown["received"] == [{"start": 0, "end": CHUNK}, {"start": 2 * CHUNK, "end": 3 * CHUNK}]
    assert finished.status_code == 200
    assert (world.home / "big").read_bytes() == content


async def test_a_wrong_sum_makes_no_file_and_the_right_parts_do(world: Files) -> None:
    upload = await begin(world, "page", 5)
    place = world.path(f"/upload/{upload}")
    right = hashlib.sha256(b"hello").hexdigest()
    await world.ada.put(place, part(b"HELLO", 0))

    wrong = await world.ada.post(f"{place}/finish", {"sha256": right})
    existed = (world.home / "page").exists()
    await world.ada.put(place, part(b"hello", 0))
    finished = await world.ada.post(f"{place}/finish", {"sha256": right})

    assert wrong.status_code == 400
    assert not existed
    assert finished.status_code == 200
    assert (world.home / "page").read_bytes() == b"hello"


async def test_two_writers_of_one_part_leave_one_of_theirs_or_a_refusal(world: Files) -> None:
    one, two = os.urandom(CHUNK), os.urandom(CHUNK)
    upload = await begin(world, "page", CHUNK)
    place = world.path(f"/upload/{upload}")

    async with trio.open_nursery() as nursery:
        for content in (one, two, one, two):
            nursery.start_soon(world.ada.put, place, part(content, 0))
    answers = [
        (await world.ada.post(f"{place}/finish", {"sha256": hashlib.sha256(content).hexdigest()})).status_code
        for content in (one, two)
    ]

    if 200 in answers:
        assert (world.home / "page").read_bytes() == (one, two)[answers.index(200)]
    else:
        assert not (world.home / "page").exists()


async def test_a_file_that_is_there_is_replaced_only_when_that_was_said(world: Files) -> None:
    give(world.folder, "page", b"old")
    digest = hashlib.sha256(b"new").hexdigest()
    answers = []

    for replace in (False, True):
        upload = await begin(world, "page", 3, replace=replace)
        await world.ada.put(world.path(f"/upload/{upload}"), part(b"new", 0))
        answer = await world.ada.post(world.path(f"/upload/{upload}/finish"), {"sha256": digest})
        answers.append((answer.status_code, (world.home / "page").read_bytes()))

    assert answers == [(409, b"old"), (200, b"new")]


async def test_a_finish_whose_answer_was_lost_is_repeated(world: Files) -> None:
    """The file took its place, and the core ended before it could say so."""
    upload = await begin(world, "page", 5)
    digest = hashlib.sha256(b"hello").hexdigest()
    await world.ada.put(world.path(f"/upload/{upload}"), part(b"hello", 0))
    temporary = world.home / ".svc-tmp" / f"upload-{upload.replace('-', '')}"
    temporary.rename(world.home / "page")

    finished = await world.ada.post(world.path(f"/upload/{upload}/finish"), {"sha256": digest})

    assert finished.json()["status"] == "finished"
    assert (world.home / "page").read_bytes() == b"hello"


async def test_an_empty_file_needs_no_part(world: Files) -> None:
    upload = await begin(world, ".htaccess", 0)

    finished = await world.ada.post(world.path(f"/upload/{upload}/finish"), {"sha256": hashlib.sha256(b"").hexdigest()})

    assert finished.status_code == 200
    assert (world.home / ".htaccess").read_bytes() == b""


@pytest.mark.parametrize(
    "body",
    [
        {"offset": 0, "data_base64": "not base64!"},
        {"offset": 0, "data_base64": "eA="},
        {"offset": 0, "data_base64": "!!!!"},
        {"offset": 0, "data_base64": "e==="},
        {"offset": 0, "data_base64": "éééé"},
        {"offset": -1, "data_base64": "eA=="},
        {"offset": 0, "data_base64": "e" * 960_004},
        {"offset": 0, "data_base64": "eA==", "more": 1},
        {"offset": "0", "data_base64": "eA=="},
    ],
)
async def test_a_part_that_is_none_is_invalid(world: Files, body: dict[str, object]) -> None:
    upload = await begin(world, "page", 10)

    answer = await world.ada.put(world.path(f"/upload/{upload}"), body)

    assert answer.status_code == 400
    assert (await world.ada.read(world.path(f"/upload/{upload}"))).json()["received"] == []


async def test_a_part_behind_the_end_is_refused(world: Files) -> None:
    upload = await begin(world, "page", 10)

    answer = await world.ada.put(world.path(f"/upload/{upload}"), part(b"x" * 11, 0))

    assert answer.status_code == 409


async def test_what_does_not_fit_on_the_disk_is_refused_before_it_is_sent(
    world: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ConfinedFiles.ask

    async def nearly_full(*asked: Any, **options: Any) -> Answer:
        answer = await ask(*asked, **options)
        return Answer({"bytes": 1 << 20}, b"") if FreeSpace() in asked else answer

    # The disk of this machine may be larger than any upload, and others write to it.
    monkeypatch.setattr(ConfinedFiles, "ask", nearly_full)
    fits = await world.ada.post(world.path("/upload"), {"path": "fits", "size": 1 << 20})
    refused = await world.ada.post(world.path("/upload"), {"path": "huge", "size": (1 << 20) + 1})

    assert fits.status_code == 200
    assert refused.status_code == 409
    assert "1,048,576 are free" in refused.json()["error"]["message"]


async def test_a_site_has_so_many_unfinished_uploads_and_no_more(world: Files) -> None:
    for number in range(20):
        await begin(world, f"file-{number}", 1)

    refused = await world.ada.post(world.path("/upload"), {"path": "one more", "size": 1})
    listed = (await world.ada.read(world.path("/upload"))).json()
    await world.ada.delete(world.path(f"/upload/{listed[0]['id']}"))
    again = await world.ada.post(world.path("/upload"), {"path": "one more", "size": 1})

    assert refused.status_code == 409
    assert len(listed) == 20
    assert again.status_code == 200


async def test_of_many_uploads_that_begin_at_once_no_more_than_so_many_are_taken(world: Files) -> None:
    answers: list[int] = []

    async def start(number: int) -> None:
        answer = await world.ada.post(world.path("/upload"), {"path": f"file-{number}", "size": 1})
        answers.append(answer.status_code)

    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(start, number)

    assert (answers.count(200), answers.count(409)) == (20, 10)


async def test_an_upload_in_a_thousand_pieces_takes_only_what_adjoins_them(world: Files) -> None:
    upload = await begin(world, "page", 5000)
    place = world.path(f"/upload/{upload}")
    await world.panel.database.execute(
        """
        UPDATE file_uploads SET received =
            (SELECT range_agg(int8range(2 * piece, 2 * piece + 1)) FROM generate_series(0, 999) AS piece)
        WHERE id = $1
        """,
        upload,
    )

    apart = await world.ada.put(place, part(b"x", 0) | {"offset": 3000})
    adjoining = await world.ada.put(place, part(b"x", 0) | {"offset": 1})
    apart_again = await world.ada.put(place, part(b"x", 0) | {"offset": 3000})

    assert apart.status_code == 409
    assert "1,000" in apart.json()["error"]["message"]
    assert adjoining.status_code == 200
    assert apart_again.status_code == 200


async def test_an_upload_that_nobody_continues_is_removed_after_a_day(world: Files) -> None:
    old = await begin(world, "old", 5)
    new = await begin(world, "new", 5)
    await world.ada.put(world.path(f"/upload/{old}"), part(b"hello", 0))
    await world.panel.database.execute(
        "UPDATE file_uploads SET touched_at = now() - interval '25 hours' WHERE id = $1", old
    )

    removed = await world.panel.services.uploads.remove_abandoned()

    assert removed == 1
    assert [row["id"] for row in (await world.ada.read(world.path("/upload"))).json()] == [new]
    assert os.listdir(world.home / ".svc-tmp") == [f"upload-{new.replace('-', '')}"]


async def test_an_upload_that_cannot_be_removed_keeps_no_other_one(world: Files) -> None:
    broken = await begin(world, "broken", 5)
    other = (await world.other.post(f"/sites/{world.other_site}/files/upload", {"path": "other", "size": 5})).json()
    await world.panel.database.execute("UPDATE file_uploads SET touched_at = now() - interval '25 hours'")
    await world.panel.services.files.forget(world.folder)
    away = world.home.rename(world.home.with_name("away"))

    with capture_logs() as lines:
        removed = await world.panel.services.uploads.remove_abandoned()
    left = await world.panel.database.fetch("SELECT id FROM file_uploads")
    away.rename(world.home)
    then = await world.panel.services.uploads.remove_abandoned()

    assert [str(row["id"]) for row in left] == [broken]
    assert other["id"] != broken
    assert (removed, then) == (1, 1)
    assert [line["upload"] for line in lines if line["event"] == "files.upload_not_removed"] == [broken]
    assert os.listdir(world.home / ".svc-tmp") == os.listdir(world.other_folder.path / ".svc-tmp") == []


async def test_uploads_of_a_site_whose_deletion_removed_its_files_and_failed_are_forgotten(world: Files) -> None:
    await begin(world, "page", 5)
    await world.panel.services.files.forget(world.folder)
    shutil.rmtree(world.home)
    await world.panel.database.execute("UPDATE file_uploads SET touched_at = now() - interval '25 hours'")
    await world.panel.database.execute("UPDATE sites SET status = 'failed' WHERE id = $1", world.site)

    removed = await world.panel.services.uploads.remove_abandoned()

    assert removed == 1
    assert await world.panel.database.fetchval("SELECT count(*) FROM file_uploads") == 0


async def test_parts_that_somebody_removed_from_the_site_are_asked_for_again(world: Files) -> None:
    upload = await begin(world, "page", 5)
    await world.ada.put(world.path(f"/upload/{upload}"), part(b"hello", 0))
    (world.home / ".svc-tmp" / f"upload-{upload.replace('-', '')}").unlink()

    told = await world.ada.put(world.path(f"/upload/{upload}"), part(b"lo", 0))
    shown = (await world.ada.read(world.path(f"/upload/{upload}"))).json()
    await world.ada.put(world.path(f"/upload/{upload}"), part(b"hello", 0))
    finished = await world.ada.post(
        world.path(f"/upload/{upload}/finish"), {"sha256": hashlib.sha256(b"hello").hexdigest()}
    )

    assert told.status_code == 409
    assert shown["received"] == []
    assert finished.status_code == 200


async def test_beginning_and_finishing_an_upload_leave_a_row_each(world: Files) -> None:
    upload = await begin(world, "page", 1)
    await world.ada.put(world.path(f"/upload/{upload}"), part(b"x", 0))
    await world.ada.post(world.path(f"/upload/{upload}/finish"), {"sha256": hashlib.sha256(b"x").hexdigest()})

    rows = [row["operation"] for row in await world.panel.audit() if row["operation"].startswith("file.")]

    assert rows == ["file.upload", "file.upload_finish"]
