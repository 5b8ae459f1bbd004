"""Keys that sign the mail of a zone: made for its first mail, published in it, and replaced without a gap."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import dkim
import pytest
import trio

from svc_actors.panel.mail.keys import MOST_PUBLISHED, DkimKey, read_key
from svc_actors.panel.mail.signing import Signatures, SigningData
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from svc_webhost.knot import KnotError
from svc_webhost.mail.dkim import signing_data
from tests.panel.dns.zones import A, World, dns_world
from tests.support.panel_sites import site_row

MESSAGE = b"From: shop@example.test\r\nTo: bob@example.net\r\nSubject: Order 7\r\n\r\nThanks.\r\n"


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[World]:
    """Ada's zone example.test has a record; mail is handed in, and keys are made as in the service."""
    async with dns_world(panel_database, tmp_path, loops=["web server", "keys of mail"]) as world:
        await world.added("@", **A)
        yield world


async def signed(world: World, from_domain: str = "example.test", site: UUID | None = None) -> str | None:
    """The signature of a mail that the site hands in now."""
    data = signing_data(MESSAGE)
    assert data is not None
    async with world.panel.database.transaction() as tx:
        await tx.fetchval("SELECT 1")
        return await Signatures(Sealer(bytes(32))).signature_for(
            tx, site or world.site, from_domain, SigningData.model_validate(data.as_json())
        )


async def key_of(world: World, other_than: str | None = None) -> DkimKey:
    with trio.fail_after(60):
        while (key := await read_key(world.panel.database, "example.test")) is None or key.selector == other_than:
            await trio.sleep(0.01)
    return key


def verified(world: World, signature: str | None) -> bool:
    """As a receiver sees it, who asks the name server of the zone."""

    def record(name: bytes, timeout: int = 5) -> bytes:
        answers = world.knot.answers(name.decode().removesuffix("."), "TXT")
        return "".join(answers).replace('" "', "").strip('"').encode()

    assert signature is not None
    return bool(dkim.verify(signature.encode() + MESSAGE, dnsfunc=record))


async def test_the_first_mail_of_a_zone_makes_the_key_that_signs_the_following_ones(world: World) -> None:
    first = await signed(world)
    key = await key_of(world)
    second = await signed(world)

    assert first is None
    assert verified(world, second)
    records = (await world.ada.get(f"/sites/{world.site}/dns")).json()["records"]
    assert [(r["name"], r["managed"]) for r in records if r["type"] == "TXT"] == [(key.record, True)]


async def test_a_key_at_rest_is_sealed(world: World) -> None:
    await signed(world)
    await key_of(world)

    sealed = await world.panel.database.fetchval("SELECT private_key FROM dkim_keys")

    assert b"\x02\x03\x01\x00\x01" not in sealed, "the public exponent, as DER has it"


async def test_a_key_that_does_not_open_is_no_reason_to_refuse_mail(world: World) -> None:
    await signed(world)
    old = await key_of(world)
    await world.panel.database.execute("UPDATE dkim_keys SET private_key = sha512('another key of the server')")

    unsigned = await signed(world)
    await world.ada.post(f"/sites/{world.site}/dns/dkim")

    assert unsigned is None
    assert (await key_of(world)).selector != old.selector
    assert verified(world, await signed(world))


@pytest.mark.parametrize("domain", ["EXAMPLE.TEST", "example.test."])
async def test_a_domain_is_known_however_it_is_written(world: World, domain: str) -> None:
    await signed(world)
    await key_of(world)

    assert verified(world, await signed(world, domain))


@pytest.mark.parametrize(
    "domain", ["test", "example.net", "badexample.test", "other.example.test", "", "a b", "%.test", "_.test", "é" * 300]
)
async def test_nothing_is_signed_for_a_domain_that_the_site_does_not_have(world: World, domain: str) -> None:
    await signed(world)
    await key_of(world)

    assert await signed(world, domain) is None


async def test_a_site_below_a_domain_signs_for_it_and_anothers_site_does_not(world: World) -> None:
    await signed(world)
    await key_of(world)
    blog = await site_row(world.panel.database, world.ada_id, "blog.example.test", registrable="example.test")
    bob = await site_row(world.panel.database, await world.panel.person("bob@example.com"), "example.net")

    assert verified(world, await signed(world, "example.test", blog))
    assert await signed(world, "example.test", bob) is None


async def test_mail_is_signed_only_once_receivers_find_the_key(world: World) -> None:
    world.knot.refused["example.test"] = KnotError("no")
    await signed(world)
    with trio.fail_after(60):
        while not await world.panel.database.fetchval("SELECT count(*) FROM audit WHERE operation = 'dkim.remove'"):
            await trio.sleep(0.01)

    assert await signed(world) is None
    assert await read_key(world.panel.database, "example.test") is None


async def test_records_of_keys_of_other_mail_servers_stay(world: World) -> None:
    await world.added("mail._domainkey", type="TXT", text="v=DKIM1; p=AAAA")
    await signed(world)
    key = await key_of(world)

    assert key.selector != "mail"
    assert world.knot.answers("mail._domainkey.example.test", "TXT") == {'"v=DKIM1; p=AAAA"'}


async def test_a_replaced_key_stays_published_for_mail_on_its_way_and_then_goes(world: World) -> None:
    await signed(world)
    old = await key_of(world)
    before = await signed(world)

    rotated = await world.ada.post(f"/sites/{world.site}/dns/dkim")

    assert rotated.status_code == 200, rotated.text
    new = await key_of(world, old.selector)
    after = await signed(world)
    assert rotated.json()["record"] == new.record
    assert verified(world, before)
    assert verified(world, after)
    assert f"s={new.selector};" in str(after)

    await world.panel.step("replaced keys of mail")
    assert verified(world, before)
    await world.panel.database.execute("UPDATE dkim_keys SET created_at = now() - interval '8 days'")
    await world.panel.database.execute("UPDATE dns_records SET created_at = created_at - interval '9 days'")
    await world.panel.step("replaced keys of mail")
    assert world.knot.answers(old.record, "TXT") == set()
    assert verified(world, after)


async def test_a_key_that_cannot_be_published_leaves_the_present_one_in_use(world: World) -> None:
    await signed(world)
    old = await key_of(world)
    world.knot.refused["example.test"] = KnotError("no")

    refused = await world.ada.post(f"/sites/{world.site}/dns/dkim")

    assert refused.status_code == 503
    assert (await key_of(world)).selector == old.selector
    assert verified(world, await signed(world))


async def test_keys_that_cannot_be_published_leave_no_record(world: World) -> None:
    await signed(world)
    old = await key_of(world)
    world.knot.refused["example.test"] = KnotError("no")
    refused = [(await world.ada.post(f"/sites/{world.site}/dns/dkim")).status_code for _ in range(MOST_PUBLISHED)]
    world.knot.refused.clear()

    rotated = await world.ada.post(f"/sites/{world.site}/dns/dkim")

    assert refused == [503] * MOST_PUBLISHED
    assert rotated.status_code == 200, rotated.text
    records = (await world.ada.get(f"/sites/{world.site}/dns")).json()["records"]
    assert {r["name"] for r in records if r["type"] == "TXT"} == {old.record, rotated.json()["record"]}


async def test_a_zone_that_is_not_here_has_no_key_to_replace(world: World) -> None:
    bob = await world.panel.customer("bob@example.com")
    bob_id = await world.panel.database.fetchval("SELECT id FROM users WHERE email = 'bob@example.com'")
    site = await site_row(world.panel.database, bob_id, "example.net")

    refused = await bob.post(f"/sites/{site}/dns/dkim")
    anothers = await bob.post(f"/sites/{world.site}/dns/dkim")

    assert refused.status_code == 409
    assert "no zone example.net" in refused.json()["error"]["message"]
    assert anothers.status_code == 404
