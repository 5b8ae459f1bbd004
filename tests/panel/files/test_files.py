"""The file manager over the API, with the helper that does the work."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tarfile
import zipfile
from typing import Any

import pytest
import trio

from svc.panel.catalogue import panel_registry
from svc_webhost.confined_client import ConfinedFiles
from tests.panel.files.conftest import Files, Program, a_site
from tests.support.site_files import give

ACTIONS = {
    "mkdir": {"path": "new"},
    "rename": {"path": "page", "name": "renamed"},
    "delete": {"paths": ["page"]},
    "chmod": {"path": "page", "mode": "640"},
    "extract": {"path": "a.zip", "to": "unpacked"},
    "copy": {"path": "page", "to": "copied"},
    "move": {"path": "page", "to": "moved"},
    "compress": {"paths": ["page"], "to": "packed.zip"},
}


async def job_of(world: Files, answered: dict[str, Any]) -> dict[str, Any]:
    """The job, when it has ended."""
    await world.panel.job_ended(answered["id"])
    job: dict[str, Any] = (await world.ada.read(f"/jobs/{answered['id']}")).json()
    return job


async def test_a_text_file_is_written_listed_read_and_changed(world: Files) -> None:
    made = await world.ada.post(world.path("/mkdir"), {"path": "public/css", "parents": True})
    put = await world.ada.put(world.path("/content"), {"path": "public/index.html", "content": "<h1>Grüße</h1>"})
    listed = await world.ada.read(world.path(), path="public")
    read = await world.ada.read(world.path("/content"), path="public/index.html")
    changed = await world.ada.put(
        world.path("/content"),
        {"path": "public/index.html", "content": "changed", "expected_sha256": read.json()["sha256"]},
    )
    stale = await world.ada.put(
        world.path("/content"),
        {"path": "public/index.html", "content": "lost update", "expected_sha256": read.json()["sha256"]},
    )

    assert made.json()["kind"] == "folder"
    assert put.json()["entry"]["mode"] == "0644"
    assert [(entry["name"], entry["kind"], entry["own"]) for entry in listed.json()["entries"]] == [
        ("css", "folder", True),
        ("index.html", "file", True),
    ]
    assert read.json()["content"] == "<h1>Grüße</h1>"
    assert changed.status_code == 200
    assert stale.status_code == 409
    assert (world.home / "public" / "index.html").read_text() == "changed"


async def test_every_action_does_what_its_name_says(world: Files) -> None:
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w") as archive:
        archive.writestr("inside", "unpacked")
    give(world.folder, "a.zip", into.getvalue())
    give(world.folder, "page", b"hello")

    copied = await world.ada.post(world.path("/copy"), {"path": "page", "to": "copied"})
    moved = await world.ada.post(world.path("/move"), {"path": "copied", "to": "moved"})
    renamed = await world.ada.post(world.path("/rename"), {"path": "moved", "name": "renamed"})
    limited = await world.ada.post(world.path("/chmod"), {"path": "renamed", "mode": "600"})
    packing = await world.ada.post(world.path("/compress"), {"paths": ["page", "renamed"], "to": "both.zip"})
    packed = await job_of(world, packing.json())
    unpacking = await world.ada.post(world.path("/extract"), {"path": "both.zip", "to": "again"})
    unpacked = await job_of(world, unpacking.json())
    deleted = await world.ada.post(world.path("/delete"), {"paths": ["page", "again"]})

    assert [answer.status_code for answer in (copied, moved, renamed, limited, packing, unpacking, deleted)] == [
        200
    ] * 7
    assert packing.json()["status"] == unpacking.json()["status"] == "queued"
    assert (packed["status"], unpacked["status"]) == ("succeeded", "succeeded")
    assert limited.json()["mode"] == "0600"
    assert deleted.json() == {"deleted": 2}
    assert sorted(os.listdir(world.home)) == [".svc-tmp", "a.zip", "both.zip", "renamed"]
    assert (world.home / "renamed").read_bytes() == b"hello"


async def test_a_hostile_archive_fails_its_job_and_says_why(world: Files) -> None:
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w") as archive:
        archive.writestr("../../bob", "evil")
    give(world.folder, "evil.zip", into.getvalue())

    job = await job_of(world, (await world.ada.post(world.path("/extract"), {"path": "evil.zip", "to": "out"})).json())

    assert job["status"] == "failed"
    assert "leads out" in str(job["error"])
    assert not (world.home / "out").exists()


async def test_an_archive_whose_job_is_cancelled_leaves_nothing(world: Files) -> None:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as archive:
        for number in range(40_000):
            archive.addfile(tarfile.TarInfo(f"many/{number}"))
    give(world.folder, "many.tar", into.getvalue())

    job = (await world.ada.post(world.path("/extract"), {"path": "many.tar", "to": "out"})).json()
    with trio.fail_after(30):
        while not (world.home / ".svc-tmp").is_dir() or not os.listdir(world.home / ".svc-tmp"):
            await trio.sleep(0.005)
    await world.ada.post(f"/jobs/{job['id']}/cancel")
    ended = await job_of(world, job)
    with trio.fail_after(30):
        while world.folder in world.panel.services.files.sites:
            await trio.sleep(0.005)
    made = await world.ada.post(world.path("/mkdir"), {"path": "afterwards"})

    assert ended["status"] == "cancelled"
    assert made.status_code == 200
    assert sorted(os.listdir(world.home)) == [".svc-tmp", "afterwards", "many.tar"]
    assert os.listdir(world.home / ".svc-tmp") == []


async def test_the_eight_actions_are_operations_of_their_own_and_no_other_is(world: Files) -> None:
    operations = {operation.name: operation for operation in panel_registry()}
    named = {operations[f"file.{action}"] for action in ACTIONS}

    unknown = await world.ada.post(world.path("/exec"), {"path": "page"})

    assert {operation.route.path for operation in named} == {f"/sites/{{id}}/files/{action}" for action in ACTIONS}
    assert len({operation.request for operation in named}) == 8
    assert unknown.status_code == 404


@pytest.mark.parametrize("action", ACTIONS)
async def test_an_action_leaves_one_row_in_the_audit_and_so_does_its_refusal(world: Files, action: str) -> None:
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w") as archive:
        archive.writestr("inside", "unpacked")
    give(world.folder, "a.zip", into.getvalue())
    give(world.folder, "page")

    done = await world.ada.post(world.path(f"/{action}"), ACTIONS[action])
    refused = await world.other.post(world.path(f"/{action}"), ACTIONS[action])

    rows = [row for row in await world.panel.audit() if row["operation"] == f"file.{action}"]
    assert done.status_code == 200
    assert refused.status_code == 404
    assert [(row["outcome"], row["actor"], row["target_id"]) for row in rows] == [
        ("ok", "ada@example.com", str(world.site)),
        ("denied", "bob@example.com", str(world.site)),
    ]


async def test_nobody_reaches_files_of_a_site_that_is_not_theirs(world: Files) -> None:
    give(world.folder, "page", b"of ada")
    upload = (await world.ada.post(world.path("/upload"), {"path": "new", "size": 1})).json()["id"]
    calls = [
        world.other.read(world.path()),
        world.other.read(world.path("/content"), path="page"),
        world.other.read(world.path("/download"), path="page"),
        world.other.put(world.path("/content"), {"path": "page", "content": "of bob"}),
        *[world.other.post(world.path(f"/{action}"), body) for action, body in ACTIONS.items()],
        world.other.post(world.path("/upload"), {"path": "x", "size": 1}),
        world.other.read(world.path("/upload")),
        world.other.read(world.path(f"/upload/{upload}")),
        world.other.put(world.path(f"/upload/{upload}"), {"offset": 0, "data_base64": "eA=="}),
        world.other.post(world.path(f"/upload/{upload}/finish"), {"sha256": "0" * 64}),
        world.other.delete(world.path(f"/upload/{upload}")),
        # An upload of another site, by the path of one's own.
        world.other.read(f"/sites/{world.other_site}/files/upload/{upload}"),
        world.other.put(f"/sites/{world.other_site}/files/upload/{upload}", {"offset": 0, "data_base64": "eA=="}),
        world.other.delete(f"/sites/{world.other_site}/files/upload/{upload}"),
    ]
    of_files = [operation for operation in panel_registry() if operation.name.startswith("file.")]

    answers = [await call for call in calls]

    assert len(calls) >= len(of_files) == 18
    assert {answer.status_code for answer in answers} == {404}
    assert (world.home / "page").read_bytes() == b"of ada"
    assert (await world.ada.read(world.path(f"/upload/{upload}"))).json()["received"] == []


async def test_the_site_of_the_path_wins_over_one_in_the_body(world: Files) -> None:
    body = {"path": "mine", "site_id": str(world.other_site), "id": str(world.other_site)}

    made = await world.ada.post(world.path("/mkdir"), body)

    assert made.status_code == 200
    assert (world.home / "mine").is_dir()
    assert not (world.other_folder.path / "mine").exists()


@pytest.mark.parametrize(
    "path",
    ["../x", "/etc/passwd", "a/../b", "a//b", "./a", "a/", "", "a\nb", "a\rb", "a\0b", "n" * 256, "d/" * 600 + "f"]
)  # fmt: skip
async def test_a_path_that_is_none_is_invalid(world: Files, path: str) -> None:
    made = await world.ada.post(world.path("/mkdir"), {"path": path})
    moved = await world.ada.post(world.path("/move"), {"path": "page", "to": path})

    assert (made.status_code, moved.status_code) == (400, 400)
    assert set(made.json()["error"]) == {"code", "message", "hint"}


@pytest.mark.parametrize(
    "name",
    ["-rf", "$(touch x)", "`id`", "a;b", "a'b\"c", "a b", "日本", "a\u202eb", "*", "%2e%2e", "..."],
)
async def test_a_strange_name_is_a_name_and_nothing_else(world: Files, name: str) -> None:
    made = await world.ada.post(world.path("/mkdir"), {"path": name})
    listed = await world.ada.read(world.path())
    deleted = await world.ada.post(world.path("/delete"), {"paths": [name]})

    assert made.status_code == 200
    assert name in [entry["name"] for entry in listed.json()["entries"]]
    assert deleted.status_code == 200


@pytest.mark.parametrize("mode", ["4755", "2755", "7777", "999", "u+s", "", "00644"])
async def test_a_mode_that_is_none_or_gives_an_account_away_is_invalid(world: Files, mode: str) -> None:
    give(world.folder, "page")

    answer = await world.ada.post(world.path("/chmod"), {"path": "page", "mode": mode})

    assert answer.status_code == 400


async def test_names_that_are_no_utf8_can_be_told(world: Files) -> None:
    give(world.folder, os.fsdecode(b"caf\xe9"))

    listed = await world.ada.read(world.path())

    assert [(entry["name"], entry["name_exact"]) for entry in listed.json()["entries"]] == [("caf\ufffd", False)]


@pytest.mark.parametrize(
    ("name", "escaped"),
    [(b"caf\xe9", "caf%E9"), (b"line\nbreak", "line%0Abreak"), (b"50%\x7f", "50%25%7F")],
    ids=["not UTF-8", "a line break", "a percent sign"],
)
async def test_a_name_that_no_path_can_have_is_renamed_and_deleted_percent_encoded(
    world: Files, name: bytes, escaped: str
) -> None:
    for folder in ("", "public/"):
        give(world.folder, folder + os.fsdecode(name))
    listed = (await world.ada.read(world.path(), path="public")).json()["entries"]

    renamed = await world.ada.post(
        world.path("/rename"), {"path": f"public/{escaped}", "name": "café", "escaped": True}
    )
    deleted = await world.ada.post(world.path("/delete"), {"paths": [escaped], "escaped": True})
    climbing = await world.ada.post(world.path("/delete"), {"paths": ["%2e%2e/outside"], "escaped": True})
    missing = await world.ada.post(world.path("/delete"), {"paths": [escaped], "escaped": True})
    rows = [row for row in await world.panel.audit() if row["operation"].startswith("file.") and row["outcome"] == "ok"]

    assert [entry["escaped"] for entry in listed] == [escaped]
    assert (renamed.json()["name"], renamed.json()["escaped"]) == ("café", None)
    assert deleted.json() == {"deleted": 1}
    assert (climbing.status_code, missing.status_code) == (400, 404)
    assert sorted(row["details"]["path"] for row in rows) == sorted([f"public/{escaped}", escaped])


async def test_a_name_as_long_as_a_name_can_be_is_renamed_and_deleted_percent_encoded(world: Files) -> None:
    for folder in ("", "public/"):
        give(world.folder, folder + os.fsdecode(b"\xe9" * 255))
    [escaped] = [
        entry["escaped"] for entry in (await world.ada.read(world.path())).json()["entries"] if entry["escaped"]
    ]

    renamed = await world.ada.post(
        world.path("/rename"), {"path": f"public/{escaped}", "name": "a.jpg", "escaped": True}
    )
    deleted = await world.ada.post(world.path("/delete"), {"paths": [escaped], "escaped": True})

    assert len(escaped) == 3 * 255
    assert renamed.json()["name"] == "a.jpg"
    assert deleted.json() == {"deleted": 1}


@pytest.mark.parametrize(
    ("path", "escaped"),
    [
        ("a" * 256, False),
        ("a" * 256, True),
        ("%E9" * 256, True),
        ("/".join(["%E9" * 250] * 5), True),
        ("%2e%2E", True),
        ("a/%2e/b", True),
        ("a%00", True),
        ("a%2F", True),
        ("%2Fetc", True),
        ("/".join(["a" * 250] * 5), False),
    ],
    ids=["plain", "unencoded", "name", "long", "up", "dot", "nul", "folder", "root", "whole"],
)
async def test_a_path_is_checked_in_the_form_in_which_it_is_used(world: Files, path: str, escaped: bool) -> None:
    answers = [
        await world.ada.post(world.path("/rename"), {"path": path, "name": "b", "escaped": escaped}),
        await world.ada.post(world.path("/delete"), {"paths": ["public", path], "escaped": escaped}),
    ]

    assert [answer.status_code for answer in answers] == [400, 400]
    for answer, field in zip(answers, ("path", "paths"), strict=True):
        assert answer.json()["error"]["message"].startswith(field), answer.text


async def test_a_download_comes_in_pages_that_belong_together(world: Files) -> None:
    content = os.urandom(1_500_000)
    give(world.folder, "video", content)
    got, version = b"", None

    while True:
        query = {"path": "video", "offset": str(len(got)), "limit": "600000"} | (
            {"version": version} if version else {}
        )
        page = (await world.ada.read(world.path("/download"), **query)).json()
        data = base64.b64decode(page["data_base64"])
        assert page["sha256"] == hashlib.sha256(data).hexdigest()
        got, version = got + data, page["version"]
        if len(got) >= page["size"]:
            break
    give(world.folder, "video", b"another")
    other = await world.ada.read(world.path("/download"), path="video", offset="600000", version=version)

    rows = [row for row in await world.panel.audit() if row["operation"] == "file.download" and row["outcome"] == "ok"]
    assert got == content
    assert other.status_code == 409
    assert len(rows) == 1
    assert rows[0]["details"]["path"] == "video"


async def test_no_page_of_a_file_is_downloaded_without_a_row(world: Files) -> None:
    give(world.folder, "secret", b"x" * 100)

    await world.ada.read(world.path("/download"), path="secret", offset="1")
    await world.ada.read(world.path("/download"), path="secret", offset="50")
    await world.ada.read(world.path("/download"), path="secret")

    rows = [row for row in await world.panel.audit() if row["operation"] == "file.download"]
    assert len(rows) == 2


async def test_reading_a_file_to_edit_it_leaves_a_row(world: Files) -> None:
    give(world.folder, "wp-config.php", b"<?php // password")

    await world.ada.read(world.path("/content"), path="wp-config.php")

    rows = [row for row in await world.panel.audit() if row["operation"] == "file.read"]
    assert [row["target_name"] for row in rows] == ["ada.example.com: wp-config.php"]


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a\0b", b"x" * 600_000])
async def test_what_is_no_text_is_not_opened_as_one(world: Files, content: bytes) -> None:
    give(world.folder, "page", content)

    answer = await world.ada.read(world.path("/content"), path="page")

    assert answer.status_code == 409
    assert "ownload" in answer.json()["error"]["hint"]


@pytest.mark.parametrize(
    ("scopes", "listed", "content", "made"),
    [(("files",), 200, 200, 200), (("read",), 200, 403, 403), (("sites",), 403, 403, 403), (("jobs",), 403, 403, 403)],
)
async def test_a_token_does_what_its_scope_says(
    world: Files, scopes: tuple[str, ...], listed: int, content: int, made: int
) -> None:
    give(world.folder, "page")
    owner = await world.panel.database.fetchval("SELECT owner_id FROM sites WHERE id = $1", world.site)
    client = Program.of(world.panel.program(await world.panel.token(owner, scopes)))

    answers = [
        await client.read(world.path()),
        await client.read(world.path("/content"), path="page"),
        await client.read(world.path("/download"), path="page"),
        await client.post(world.path("/mkdir"), {"path": "new"}),
    ]

    assert [answer.status_code for answer in answers] == [listed, content, content, made]


async def test_a_site_that_is_being_removed_keeps_its_files_alone(world: Files) -> None:
    owner = await world.panel.database.fetchval("SELECT owner_id FROM sites WHERE id = $1", world.site)
    leaving, _ = await a_site(world.panel.database, owner, "leaving.example.com", "deleting")

    answer = await world.ada.read(f"/sites/{leaving}/files")

    assert answer.status_code == 409


async def test_a_thousand_files_are_listed_over_the_api(world: Files) -> None:
    (world.home / "many").mkdir()
    for number in range(1000):
        (world.home / "many" / f"file-{number}").touch()

    answer = await world.ada.read(world.path(), path="many")

    assert {entry["name"] for entry in answer.json()["entries"]} == {f"file-{number}" for number in range(1000)}


async def test_files_are_served_by_one_helper_of_each_site(world: Files) -> None:
    files: ConfinedFiles = world.panel.services.files

    await world.ada.read(world.path())
    await world.other.read(f"/sites/{world.other_site}/files")
    await world.ada.read(world.path())

    assert files.sites == {world.folder, world.other_folder}
