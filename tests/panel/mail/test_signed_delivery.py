"""What a site's program hands to sendmail arrives at the relay with a signature that receivers verify by the DNS."""

from __future__ import annotations

import dkim
import pytest

from tests.panel.mail.world import DOMAIN, SiteMailWorld
from tests.support.dns import RecordedNameServer

LINE = "From: Shop <info@shop.example>\n"


async def with_key(world: SiteMailWorld) -> RecordedNameServer:
    """The name server, once it serves the key of the site's zone."""
    ada = world.panel.program(await world.panel.token(world.owner))
    address = {"name": "@", "data": {"type": "A", "address": "192.0.2.1"}}
    added = await ada.post(f"/sites/{world.site.id}/dns/records", address)
    made = await ada.post(f"/sites/{world.site.id}/dns/dkim")
    assert (added.status_code, made.status_code) == (201, 200), made.text
    names = world.panel.host.name_server
    assert isinstance(names, RecordedNameServer)
    return names


def verified(raw: bytes, names: RecordedNameServer) -> bool:
    def record(name: bytes, timeout: int = 5) -> bytes:
        answers = names.answers(name.decode().removesuffix("."), "TXT")
        return "".join(answers).replace('" "', "").strip('"').encode()

    return bool(dkim.verify(raw, dnsfunc=record))


@pytest.mark.parametrize(
    "message",
    [
        f"{LINE}To: bob@example.net\nSubject: Order\n\nThanks.\n",
        f"{LINE}To: bob@example.net\nBcc: eve@example.net\nSubject: Bestellung über 5 €\n\n.\n..dots\nGrüße \t\n\n\n",
        f"{LINE}To: bob@example.net,\n  Carl <carl@example.net>\nSubject: folded\n\tsubject   with spaces \n\n",
        f"{LINE}X-PHP-Originating-Script: 1001:form.php\r\nTo: bob@example.net\r\n\r\nmixed\r\nends\nhere",
        f"To: bob@example.net\n{LINE}Subject: {'x' * 900}\n\n{'y ' * 400}\n",
        "To: bob@example.net\n\nno From: the panel adds it\n",
    ],
    ids=["plain", "non-ascii", "folded", "mixed ends", "long lines", "without From"],
)
async def test_mail_of_a_site_is_signed_and_verified_as_it_arrives(world: SiteMailWorld, message: str) -> None:
    names = await with_key(world)

    handed_in = await world.send(message)
    await world.step("delivery of sites' mail")
    arrived = await world.relay.next()

    assert handed_in.returncode == 0, handed_in.stderr
    assert f"d={DOMAIN};" in str(arrived.message["DKIM-Signature"])
    assert verified(arrived.raw, names)
    assert not verified(arrived.raw.replace(b"bob@", b"eve@"), names)


async def test_mail_from_a_domain_of_others_is_sent_unsigned(world: SiteMailWorld) -> None:
    await with_key(world)

    await world.send("From: boss@bank.example\nTo: bob@example.net\n\nhi\n")
    await world.step("delivery of sites' mail")
    arrived = await world.relay.next()

    assert arrived.message["DKIM-Signature"] is None
