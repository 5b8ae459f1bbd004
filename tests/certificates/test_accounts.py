"""The account of an authority, which all certificates from there share."""

from __future__ import annotations

import pytest

from svc_actors.acme import ChallengeType, new_key
from svc_actors.certificates import IssuedCertificate, IssuingServices, issuing
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import Database

FIRST, SECOND = "https://authority.test/", "https://another.test/"


async def test_its_key_is_made_once_however_many_certificates_are_wanted_there(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand sites each asks at every start; a key costs some milliseconds of the core's one thread."""
    made: list[object] = []

    def counted() -> object:
        made.append(new_key())
        return made[-1]

    monkeypatch.setattr(issuing, "new_key", counted)
    wanted = IssuingServices(database, Sealer(bytes(32)))
    async with ActorSystem.open() as actors:
        actors.register(IssuedCertificate, lambda _: IssuedCertificate(wanted))
        for number in range(3):
            for directory in (FIRST, SECOND):
                certificate = actors.ref(IssuedCertificate, f"site:{number}")
                names, proven_by = [f"{number}.example.com"], ChallengeType.HTTP_01
                await certificate.ask(IssuedCertificate.want, directory, "ops@example.com", names, proven_by)

    assert len(made) == 2
    assert await database.fetchval("SELECT count(*) FROM acme_accounts") == 2
