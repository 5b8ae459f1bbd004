"""Certificates that were signed after the backup that a controller was restored from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from svc_actors.controller.gateway.unrecorded import PresentedCertificate
from tests.support.gateway import GatewayHarness, until


async def test_a_certificate_that_was_renewed_since_the_backup_lets_its_node_in(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    await rig.database.execute("DELETE FROM node_certificates")
    await rig.database.execute(
        "INSERT INTO restorations (taken_at, release, restored_at)"
        " VALUES (now() - interval '1 hour', '0.1.0', now() + interval '1 minute')"
    )

    async with node.running():
        await rig.until_online(node.node_id)

    assert await rig.database.fetchval("SELECT count(*) FROM node_certificates") == 1


async def test_a_certificate_without_a_record_is_refused_where_nothing_was_restored(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    await rig.database.execute("DELETE FROM node_certificates")

    async with node.running():
        await until(lambda: rig.gateway.refused >= 1)

    assert not rig.heard.connected


async def test_a_node_that_joined_since_the_backup_is_told_of(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    await rig.database.execute("DELETE FROM node_certificates")
    await rig.database.execute("DELETE FROM node_bootstraps WHERE node_id = $1", node.node_id)
    await rig.database.execute("DELETE FROM node_capacity WHERE node_id = $1", node.node_id)
    await rig.database.execute("DELETE FROM nodes WHERE id = $1", node.node_id)
    await rig.database.execute(
        "INSERT INTO restorations (taken_at, release, restored_at)"
        " VALUES (now() - interval '1 hour', '0.1.0', now() + interval '1 minute')"
    )

    async with node.running():
        await until(lambda: rig.gateway.refused >= 1)

    alerts = await rig.database.fetch("SELECT message FROM alerts WHERE key = $1", f"node-unrecorded:{node.node_id}")
    assert len(alerts) == 1
    assert not rig.heard.connected


def test_the_names_and_times_of_a_certificate_are_read() -> None:
    peer = {
        "subject": ((("commonName", "7ccecc76-bb56-443f-a32b-13fdd016bc14"),),),
        "serialNumber": "0AFF",
        "notBefore": "Nov 20 04:00:00 2026 GMT",
        "notAfter": "Feb 18 04:00:00 2027 GMT",
    }

    shown = PresentedCertificate.of(peer, backdated=timedelta(days=2))

    assert shown.serial == "aff"
    assert shown.issued_at == datetime(2026, 11, 22, 4, tzinfo=UTC)
