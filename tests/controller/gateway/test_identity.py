"""Who may be at the other end: certificates, their renewal and their end."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from svc_nodeagent.agent import Patience
from svc_nodeagent.config import Identity
from svc_nodeagent.enrol import new_key, private_pem, signing_request
from svc_nodeagent.protocol import OperationId
from svc_nodeagent.simulated import Behaviour
from tests.support.gateway import GatewayHarness, NodeOnDisk, create, until


async def _revoke(rig: GatewayHarness, node: NodeOnDisk) -> None:
    async with rig.database.transaction() as tx:
        await rig.authority.revoke(tx, node.node_id)
    rig.authority.forget(node.node_id)
    rig.gateway.drop(node.node_id, "the node was deleted")


async def test_a_deleted_nodes_live_connection_is_dropped_and_its_certificate_refused(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    async with node.running() as agent:
        await rig.until_online(node.node_id)
        await _revoke(rig, node)
        assert not rig.gateway.is_online(node.node_id)
        with trio.fail_after(10):
            await until(lambda: not agent.connected)
        await until(lambda: rig.gateway.refused >= 1)
        assert not agent.connected
    assert rig.heard.connected == [node.node_id]


@pytest.mark.parametrize("ending", ["deleted_at", "lost_at"])
async def test_a_renewal_beside_the_end_of_its_node_signs_nothing(rig: GatewayHarness, ending: str) -> None:
    node = await rig.new_node()
    serial = await rig.database.fetchval("SELECT serial FROM node_certificates")
    refused = list[ServiceError]()

    async def renew() -> None:
        try:
            await rig.authority.renew(node.node_id, serial, signing_request(new_key()))
        except ServiceError as error:
            refused.append(error)

    async with trio.open_nursery() as nursery, rig.database.transaction() as tx:
        await tx.execute(f"UPDATE nodes SET {ending} = now() WHERE id = $1", node.node_id)
        await rig.authority.revoke(tx, node.node_id)
        nursery.start_soon(renew)
        await waits_for_a_lock(rig.database)
    assert [error.code for error in refused] == [ErrorCode.NOT_FOUND]
    assert await rig.database.fetchval("SELECT count(*) FROM node_certificates WHERE revoked_at IS NULL") == 0


async def waits_for_a_lock(database: Database) -> None:
    with trio.move_on_after(5):  # Without a lock there is nothing to wait for, and the assertion tells.
        while not await database.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            await trio.sleep(0.01)


async def test_what_waits_for_a_deleted_node_is_told(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    node.host.behaviour = Behaviour(seconds=(60, 60))
    async with node.running() as agent, trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(OperationFailed, match="deleted"):
                await rig.gateway.perform(node.node_id, OperationId("t:create"), create(), timeout=60)

        nursery.start_soon(ask)
        await until(lambda: bool(agent._journal.started))
        await _revoke(rig, node)


async def test_a_refused_agent_in_a_tight_loop_is_slowed_down(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    await _revoke(rig, node)
    reckless = Patience(first_pause=0.0, longest_pause=0.0, settled_after=60)
    before = trio.current_time()
    async with node.running(reckless):
        await until(lambda: rig.gateway.refused >= 2)
        elapsed = trio.current_time() - before
        assert rig.gateway.refused <= 2 + elapsed


async def test_a_certificate_of_another_authority_is_refused(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    stranger = await rig.new_node()
    other = new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(node.node_id))])
    forged = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(other.public_key())
        .serial_number(1)
        .not_valid_before(datetime.now(UTC) - timedelta(hours=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .sign(other, hashes.SHA256())
    )
    stranger.folder.write(stranger.folder.identity, private_pem(other) + forged.public_bytes(Encoding.PEM))
    async with stranger.running():
        await until(lambda: rig.gateway.refused >= 1)
    assert not rig.heard.connected


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_tls_below_1_2_is_refused(rig: GatewayHarness) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    tcp = await trio.open_tcp_stream("127.0.0.1", rig.port)
    with pytest.raises(trio.BrokenResourceError):
        await trio.SSLStream(tcp, context, server_hostname="localhost").do_handshake()


async def test_a_certificate_is_renewed_over_the_open_channel_and_the_old_one_is_refused(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    old = node.folder.identity.read_bytes()
    async with node.running() as agent:
        await rig.until_online(node.node_id)
        first = agent.identity
        agent.renew_certificate()
        await until(lambda: agent.identity is not first and agent.connected)
        await rig.gateway.perform(node.node_id, OperationId("t:create"), create(), timeout=20)
    assert node.folder.identity.read_bytes() != old
    assert not node.folder.next_identity.exists()
    live = await rig.database.fetch(
        "SELECT serial FROM node_certificates WHERE node_id = $1 AND revoked_at IS NULL", node.node_id
    )
    assert len(live) == 1
    renewed = node.folder.identity.read_bytes()
    node.folder.write(node.folder.identity, old)
    refused = rig.gateway.refused
    async with node.running():
        await until(lambda: rig.gateway.refused > refused)
    node.folder.write(node.folder.identity, renewed)
    async with node.running():
        await rig.until_online(node.node_id)


async def test_an_operation_under_way_survives_the_renewal(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    node.host.behaviour = Behaviour(seconds=(0.3, 0.3))
    async with node.running() as agent, trio.open_nursery() as nursery:
        await rig.until_online(node.node_id)
        first = agent.identity

        async def ask() -> None:
            await rig.gateway.perform(node.node_id, OperationId("t:create"), create(), timeout=20)

        nursery.start_soon(ask)
        await until(lambda: bool(agent._journal.started))
        agent.renew_certificate()
        await until(lambda: agent.identity is not first)
    assert len(node.host.performed) == 1


async def test_an_agent_that_died_before_it_adopted_its_renewal_comes_back(rig: GatewayHarness) -> None:
    """The controller has seen the new certificate and refuses the old; the agent still has both files."""
    node = await rig.new_node()
    key = new_key()
    async with rig.database.transaction() as tx:
        renewed = await rig.authority.sign_node(tx, node.node_id, signing_request(key))
    assert await rig.authority.identify(renewed.serial) == node.node_id
    node.folder.write(node.folder.next_identity, private_pem(key) + renewed.pem.encode())
    async with node.running():
        await rig.until_online(node.node_id)
        await until(lambda: not node.folder.next_identity.exists())
    assert Identity.load(node.folder.identity, node.folder.authority).not_after == renewed.expires_at


async def test_a_new_connection_of_a_node_takes_the_place_of_the_old(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    async with node.running():
        await rig.until_online(node.node_id)
        twin = NodeOnDisk(node.node_id, node.folder)
        twin.folder.journal.rename(twin.folder.path / "journal-of-the-first")
        async with twin.running():
            await until(lambda: len(rig.heard.connected) >= 2)
    # The first was cut without the node having been called offline in between.
    assert len(rig.gateway.online()) <= 1


async def test_a_request_cannot_choose_whom_its_certificate_names(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    text = node.folder.identity.read_text()
    certificate = x509.load_pem_x509_certificate(text.encode())
    assert certificate.subject.rfc4514_string() == f"CN={node.node_id}"
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert await rig.authority.identify(uuid4().hex) is None
