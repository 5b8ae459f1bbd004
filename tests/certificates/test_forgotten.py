"""A certificate that is not wanted any more, while an order for it is under way."""

from __future__ import annotations

import pytest

from svc_actors.acme import ChallengeType, Refused
from svc_actors.certificates import IssuedCertificate, Issuing
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError


async def test_what_comes_of_its_order_is_refused_and_nothing_crashes(database: Database) -> None:
    issuing = Issuing(database, Sealer(bytes(32)))
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
