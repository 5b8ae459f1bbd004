"""What programs of a site hand in is accepted, within limits, over the socket that they see."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from svc_actors.disk_space import Space
from svc_actors.panel.mail import intake, queue, spool
from svc_actors.store import Database
from svc_webhost import mail
from svc_webhost.mail import socket_of
from tests.panel.mail.world import MESSAGE, SiteMailWorld, read_line, site_mail_world
from tests.support.panel_sites import site_row


async def test_a_message_is_delivered_as_the_site_wrote_it(world: SiteMailWorld) -> None:
    sent = await world.send()
    spooled = world.spooled
    await world.step("delivery of sites' mail")
    mail = await world.relay.next()
    [row] = await world.rows()

    assert (sent.returncode, sent.stderr) == (0, b"")
    assert (mail.sender, mail.recipients) == ("noreply@shop.example", ["bob@example.net"])
    assert (mail.message["From"], mail.message["Subject"]) == ("Shop <info@shop.example>", "Order")
    assert mail.message["Message-ID"].endswith("@shop.example>")
    assert mail.raw.endswith(b"\r\n\r\nThanks.\r\n")
    assert (row["state"], row["attempts"], row["error"]) == ("sent", 1, None)
    assert spooled == [row["message"].hex]
    assert world.spooled == [], "the message is not kept"


async def test_messages_are_readable_for_root_alone(world: SiteMailWorld) -> None:
    await world.send()

    folder = world.folders.mail_spool
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE((folder / name).stat().st_mode) for name in world.spooled] == [0o600]


async def test_each_recipient_gets_it_once_and_a_hidden_one_is_not_named(world: SiteMailWorld) -> None:
    await world.send("To: bob@example.net, Bob <bob@example.net>\nBcc: eve@example.net\nSubject: x\n\nhi\n")
    await world.step("delivery of sites' mail")
    mails = [await world.relay.next(), await world.relay.next()]

    assert sorted(mail.recipients[0] for mail in mails) == ["bob@example.net", "eve@example.net"]
    assert {mail.message["From"] for mail in mails} == {"noreply@shop.example"}
    assert all(b"eve@" not in mail.raw for mail in mails)
    assert world.relay.waiting == 0


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("bounces@shop.example", "bounces@shop.example"),
        ("someone@bank.example", "noreply@shop.example"),
        ("s1001", "noreply@shop.example"),
    ],
)
async def test_bounces_go_to_an_address_of_the_site(world: SiteMailWorld, given: str, used: str) -> None:
    await world.send(MESSAGE, "-t", "-i", "-f", given)

    [row] = await world.rows()
    assert row["sender"] == used


async def test_the_script_is_named_that_called_mail(world: SiteMailWorld) -> None:
    folder = world.folder / "public" / "uploads"
    folder.mkdir(parents=True)
    (folder / "x.php").touch()

    await world.send(f"X-PHP-Originating-Script: 1001:x.php\n{MESSAGE}", folder=folder)
    await world.step("delivery of sites' mail")
    [row] = await world.rows()
    mail = await world.relay.next()

    assert row["script"] == "public/uploads/x.php"
    assert "X-PHP-Originating-Script" not in mail.message


async def test_an_account_without_a_site_is_refused(world: SiteMailWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "FIRST_UID", 1_900_000_000)

    refused = await world.send()

    assert refused.returncode == 77
    assert b"no site of this server has this account" in refused.stderr
    assert await world.rows() == []


async def test_without_a_relay_mail_is_refused_in_words(
    panel_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail, "SENDMAIL_OF_SERVER", Path("/none"))
    async with site_mail_world(panel_database, monkeypatch, configured=False) as world:
        refused = await world.send()

        assert refused.returncode == 69
        assert b"no relay is configured" in refused.stderr


async def test_a_suspended_site_sends_nothing(world: SiteMailWorld) -> None:
    await world.send()
    await world.database.execute("UPDATE sites SET status = 'suspended', suspended_by = 'owner'")

    refused = await world.send()
    await world.step("delivery of sites' mail")

    assert refused.returncode == 77
    assert b"suspended" in refused.stderr
    assert world.relay.waiting == 0
    assert [row["state"] for row in await world.rows()] == ["queued"]


async def test_a_staging_copy_keeps_its_mail(world: SiteMailWorld) -> None:
    await world.database.execute("UPDATE sites SET staging_of = gen_random_uuid()")

    kept = await world.send()

    [file] = (world.folder / "private" / "mail").iterdir()
    assert kept.returncode == 0
    assert b"Thanks." in file.read_bytes()
    assert file.name.endswith(".eml")
    assert await world.rows() == []


async def test_a_full_disk_refuses_for_now(world: SiteMailWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "LEAST_FREE", 1 << 60)

    refused = await world.send()

    assert refused.returncode == 75
    assert b"disk is nearly full" in refused.stderr


async def test_a_disk_that_fills_leaves_nothing_behind(world: SiteMailWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, piece: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spool, "_write", full)

    refused = await world.send()

    assert refused.returncode == 75
    assert world.spooled == []
    assert await world.rows() == []


async def test_a_spool_that_cannot_be_written_refuses_for_now(
    world: SiteMailWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(spool, "_created", broken)

    refused = await world.send()

    assert refused.returncode == 75
    assert b"cannot store mail" in refused.stderr


async def test_too_many_queued_mails_are_refused_for_now(world: SiteMailWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "MOST_QUEUED", 2)
    await world.send()
    await world.send()

    refused = await world.send()

    assert refused.returncode == 75
    assert b"are queued" in refused.stderr
    assert len(world.spooled) == 2


async def test_a_lost_answer_makes_no_second_mail(world: SiteMailWorld) -> None:
    """The program hands in the message again, as it cannot know."""
    order = {**ORDER, "bytes": 5}
    answers = []
    for _ in range(2):
        async with world.connected() as stream:
            await read_line(stream)
            await stream.send_all(json.dumps(order).encode() + b"\nhello")
            answers.append(json.loads(await read_line(stream)))

    assert answers == [{"accepted": True}] * 2
    assert len(await world.rows()) == 1


ORDER: dict[str, Any] = {
    "id": "0" * 32,
    "bytes": 5,
    "sender": None,
    "recipients": ["bob@example.net"],
    "script": "public/x.php",
    "from_domain": "shop.example",
    "signing": None,
}


def changed(**values: Any) -> bytes:
    return json.dumps(ORDER | values).encode()


@pytest.mark.parametrize(
    "line",
    [
        changed(sender="a@b.example\r\nRCPT TO:<c@d.example>"),
        changed(recipients=["bob@example.net\n"]),
        changed(recipients=["bob@example.net> SIZE=1"]),
        changed(recipients=['"a b"@example.net']),
        changed(recipients=["@example.net"]),
        changed(recipients=["bob"]),
        changed(recipients=[]),
        changed(recipients=[f"u{number}@example.net" for number in range(10_000)]),
        changed(recipients="bob@example.net"),
        changed(id="../../../etc/passwd"),
        changed(bytes=-1),
        changed(bytes=True),
        changed(bytes=10**12),
        changed(more=1),
        changed(script="x" * 1000),
        changed(signing={"headers": "x", "names": "from\r\nx", "body_hash": "x"}),
        b"[" * 100_000,
        b"\xff\xfe",
        b"",
    ],
    ids=range(19),
)
async def test_an_order_that_is_not_exactly_right_is_refused(world: SiteMailWorld, line: bytes) -> None:
    async with world.connected() as stream:
        await read_line(stream)
        await stream.send_all(line + b"\nhello")
        answer = json.loads(await read_line(stream))

    assert answer["exit"] == 69
    assert await world.rows() == []
    assert world.spooled == []


async def test_line_breaks_in_the_name_of_a_script_are_shown_as_one_line(world: SiteMailWorld) -> None:
    async with world.connected() as stream:
        await read_line(stream)
        await stream.send_all(changed(script="a\nb\x00c\x1b[31m\u202e") + b"\nhello")
        await read_line(stream)

    [row] = await world.rows()
    assert row["script"] == "a?b?c?[31m?"


async def test_an_endless_line_ends_the_connection(world: SiteMailWorld) -> None:
    async with world.connected() as stream:
        await read_line(stream)
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(b"x" * 10_000_000)
        assert await ended(stream)


async def test_a_program_that_ends_in_the_middle_leaves_nothing(world: SiteMailWorld) -> None:
    async with world.connected() as stream:
        await read_line(stream)
        await stream.send_all(changed(bytes=1000) + b"\nhello")

    await until(lambda: not world.spooled)
    assert await world.rows() == []


async def test_a_slow_program_holds_its_connection_for_a_bounded_time(
    world: SiteMailWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MAIL_SECONDS", 0.5)

    async with world.connected() as stream:
        await read_line(stream)
        await stream.send_all(changed(bytes=1000) + b"\nh")
        assert await ended(stream)
    await until(lambda: not world.spooled)


async def test_a_site_has_few_connections_at_a_time(world: SiteMailWorld) -> None:
    streams = [await trio.open_unix_socket(str(socket_of(world.folders))) for _ in range(intake.MOST_OF_A_SITE)]
    for stream in streams:
        await read_line(stream)

    async with world.connected() as further:
        busy = json.loads(await read_line(further))
    await streams.pop().aclose()
    after = await world.send()
    for stream in streams:
        await stream.aclose()

    assert busy == {"busy": True}
    assert after.returncode == 0


async def test_a_message_that_is_too_large_is_refused(world: SiteMailWorld, tmp_path: Path) -> None:
    with (tmp_path / "large").open("w+b") as message:
        message.write(MESSAGE.encode() + b"x" * 27_000_000)
        message.seek(0)
        refused = await world.send(message)

    assert refused.returncode == 69
    assert b"25 MiB" in refused.stderr


async def test_a_large_message_arrives_whole(world: SiteMailWorld) -> None:
    body = os.urandom(1_500_000).hex()
    lines = "\n".join(body[start : start + 76] for start in range(0, len(body), 76))

    sent = await world.send(f"{MESSAGE}{lines}\n")
    [row] = await world.rows()

    spooled = (world.folders.mail_spool / world.spooled[0]).read_bytes()
    assert sent.returncode == 0
    assert row["bytes"] == len(spooled)
    assert spooled.endswith(lines.replace("\n", "\r\n").encode() + b"\r\n")


@pytest.mark.parametrize(
    "content",
    [
        b"Subject: x\r\n\r\na\n.\r\nMAIL FROM:<a@b.example>\r\n",
        b"Subject: x\r\n\r\na\r.\rMAIL FROM:<a@b.example>\r\n",
        b"a\r\r\n",
        b"a\0b\r\n",
        b"a\r",
        b"\na",
        # Over the border of two pieces.
        b"a" * 65535 + b"\r" + b"b\r\n",
        b"a" * 65536 + b"\nb\r\n",
    ],
    ids=range(8),
)
async def test_line_ends_that_servers_read_differently_are_refused(world: SiteMailWorld, content: bytes) -> None:
    """A program may speak to the socket itself, and hand in what sendmail would not."""
    answer = await handed_in(world, content)

    assert answer["exit"] == 69
    assert await world.rows() == []
    assert world.spooled == []


async def test_line_ends_over_the_border_of_pieces_are_accepted(world: SiteMailWorld) -> None:
    assert await handed_in(world, b"a" * 65535 + b"\r\nb\r\n" * 50_000) == {"accepted": True}


@pytest.mark.parametrize("domain", ["bank.example", "pay.bank.example", "BANK.example."])
async def test_a_from_of_another_customer_is_refused(world: SiteMailWorld, domain: str) -> None:
    bob = await world.panel.person("bob@example.com")
    await site_row(world.database, bob, "www.bank.example", registrable="bank.example")

    refused = await handed_in(world, b"x\r\n", from_domain=domain)
    accepted = await handed_in(world, b"x\r\n", from_domain="notbank.example")

    assert refused["exit"] == 69
    assert "another customer" in refused["refused"]
    assert accepted == {"accepted": True}


async def test_too_many_queued_bytes_are_refused_for_now(world: SiteMailWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message counts once, however many recipients it has."""
    monkeypatch.setattr(queue, "MOST_QUEUED_BYTES", 100)
    both = ["a@example.net", "b@example.net"]

    answers = [await handed_in(world, b"x" * 50, id=f"{number:032}", recipients=both) for number in range(3)]

    assert answers[:2] == [{"accepted": True}] * 2
    assert answers[2]["exit"] == 75
    assert len(world.spooled) == 2


async def test_room_is_kept_for_what_is_being_written(world: SiteMailWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    space = Space.of(world.folder)
    monkeypatch.setattr(Space, "of", lambda path: space)
    monkeypatch.setattr(spool, "LEAST_FREE", space.free - 1500)
    async with world.connected() as first:
        await read_line(first)
        await first.send_all(changed(bytes=1000) + b"\nhello")
        await until(lambda: bool(world.spooled))
        second = await handed_in(world, b"x" * 1000, id="1" * 32)
    await until(lambda: not world.spooled)
    after = await handed_in(world, b"x" * 1000, id="1" * 32)

    assert second["exit"] == 75
    assert after == {"accepted": True}


async def test_a_message_is_handed_in_over_one_connection_at_a_time(world: SiteMailWorld) -> None:
    async with world.connected() as first:
        await read_line(first)
        await first.send_all(changed() + b"\nhell")
        await until(lambda: bool(world.spooled))
        second = await handed_in(world, b"other")
        await first.send_all(b"o")
        answer = json.loads(await read_line(first))
    later = await handed_in(world, b"other")

    assert second == {"busy": True}
    assert answer == later == {"accepted": True}
    [name] = world.spooled
    assert (world.folders.mail_spool / name).read_bytes() == b"hello"


async def handed_in(world: SiteMailWorld, content: bytes, **values: Any) -> dict[str, Any]:
    """The core's last answer."""
    async with world.connected() as stream:
        greeting = await read_line(stream)
        if b"domain" not in greeting:
            return dict(json.loads(greeting))
        with suppress(trio.BrokenResourceError):
            await stream.send_all(changed(**{"bytes": len(content)} | values) + b"\n" + content)
        return dict(json.loads(await read_line(stream)))


async def test_a_link_in_the_spool_is_not_followed(world: SiteMailWorld, tmp_path: Path) -> None:
    await world.send()
    [name] = world.spooled
    (world.folders.mail_spool / name).unlink()
    (world.folders.mail_spool / name).symlink_to("/etc/hostname")

    await world.step("delivery of sites' mail")

    [row] = await world.rows()
    assert world.relay.waiting == 0
    assert row["state"] == "failed"


async def test_what_a_killed_core_left_unfinished_is_removed(world: SiteMailWorld) -> None:
    await world.send()
    [kept] = world.spooled
    (world.folders.mail_spool / "0123.part").touch()

    spool.Spool(world.folders.mail_spool).prepare()

    assert world.spooled == [kept]


async def ended(stream: trio.SocketStream) -> bool:
    try:
        return await read_line(stream) == b""
    except trio.BrokenResourceError:
        return True


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(30):
        while not holds():
            await trio.sleep(0.01)  # The connection's other end does it.
