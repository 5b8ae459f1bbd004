"""A certificate that is no longer wanted, or for other names, while an order for it is under way."""

from __future__ import annotations

from datetime import timedelta

import pytest

from svc_actors.acme import ChallengeType, Refused
from svc_actors.certificates import IssuedCertificate, IssuingServices
from svc_actors.certificates.left_out import Refusal
from svc_actors.certificates.steps import IssuingAttempt, Wait
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError


async def test_what_comes_of_its_order_is_refused_and_nothing_crashes(database: Database) -> None:
    issuing = IssuingServices(database, Sealer(bytes(32)))
    async with ActorSystem.open() as actors:
        actors.register(IssuedCertificate, lambda _: IssuedCertificate(issuing))
        actor = actors.ref(IssuedCertificate, "site:1")
        names, proven_by = ["shop.example.com"], ChallengeType.HTTP_01
        await actor.ask(IssuedCertificate.want, "https://authority.test/", "ops@example.com", names, proven_by)
        await actor.ask(IssuedCertificate.step)
        await actor.ask(IssuedCertificate.forget)

        codes = []
        for late in (
            lambda: actor.ask(IssuedCertificate.step),
            lambda: actor.ask(IssuedCertificate.issued, "a chain"),
            lambda: actor.ask(IssuedCertificate.failed, Refused("no")),
        ):
            with pytest.raises(ServiceError) as refused:
                await late()
            codes.append(refused.value.code)

    assert codes == [ErrorCode.NOT_FOUND] * 3


@pytest.mark.parametrize("new_order_is_under_way", [False, True])
async def test_refusals_of_an_order_that_was_replaced_leave_out_no_name(
    database: Database, new_order_is_under_way: bool
) -> None:
    issuing = IssuingServices(database, Sealer(bytes(32)))
    async with ActorSystem.open() as actors:
        actors.register(IssuedCertificate, lambda _: IssuedCertificate(issuing))
        actor = actors.ref(IssuedCertificate, "site:1")

        async def want(*names: str) -> None:
            authority, contact, pause = "https://authority.test/", "ops@example.com", timedelta(minutes=15)
            await actor.ask(IssuedCertificate.want, authority, contact, names, ChallengeType.HTTP_01, pause)

        await want("shop.example.com", "old.example.com")
        replaced = await actor.ask(IssuedCertificate.step)
        assert isinstance(replaced, IssuingAttempt)
        await want("shop.example.com", "new.example.com")
        if new_order_is_under_way:
            await actor.ask(IssuedCertificate.step)
        refusals = [Refusal("shop.example.com", "no address"), Refusal("old.example.com", "no address")]
        await actor.ask(IssuedCertificate.failed, Refused("no"), refusals, replaced.key)
        now = await actor.ask(IssuedCertificate.step)
        left = await database.fetchval("SELECT left_out FROM acme_certificates")
        await want("shop.example.com")
        paced = await actor.ask(IssuedCertificate.step)

    assert isinstance(now, IssuingAttempt)
    assert now.names == ("shop.example.com", "new.example.com")
    assert left == {}
    assert isinstance(paced, Wait)
