"""The client against Pebble, which refuses one nonce in ten and looks at challenges for real."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from cryptography import x509

from svc_actors.acme import (
    AcmeClient,
    ChallengeType,
    ExternalAccount,
    Order,
    Refused,
    Status,
    new_key,
    signing_request,
)
from tests.support.pebble import Pebble, open_pebble

pytestmark = [pytest.mark.system, pytest.mark.isolated]


@asynccontextmanager
async def answering(pebble: Pebble, proofs: dict[str, str]) -> AsyncIterator[None]:
    """A web server where the authority looks."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            path = (await stream.receive_some(4096)).split()[1].decode()
            proof = proofs.get(path.rpartition("/")[2], "")
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(proof)}\r\nConnection: close\r\n\r\n"
            await stream.send_all((head + proof).encode())

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_tcp, serve, pebble.challenge_port, host="127.0.0.1"))
        yield
        nursery.cancel_scope.cancel()


async def prove(client: AcmeClient, order: Order, proofs: dict[str, str]) -> Order:
    """Answer every challenge, then wait until the authority has looked."""
    for url in order.authorizations:
        challenge = (await client.authorization(url)).challenge(ChallengeType.HTTP_01)
        assert challenge is not None
        proofs[challenge.token] = client.proof(challenge.token)
        await client.respond(challenge)
    return await settled(client, order, Status.PENDING)


async def settled(client: AcmeClient, order: Order, passing: Status) -> Order:
    with trio.fail_after(60):
        while (order := await client.order(order.url)).status is passing:
            await trio.sleep(0.05)  # The outside world is asked again.
    return order


async def test_a_certificate_for_two_names(tmp_path: Path) -> None:
    names, key, proofs = ["controller.example", "www.controller.example"], new_key(), dict[str, str]()
    async with open_pebble(tmp_path / "pebble") as pebble, pebble.client() as http, answering(pebble, proofs):
        client = AcmeClient(http, pebble.directory, new_key())
        await client.register("ops@provider.example", terms_agreed=True)

        order = await prove(client, await client.new_order(names), proofs)
        await client.finalise(order, signing_request(key, names))
        done = await settled(client, order, Status.PROCESSING)
        leaf, *chain = x509.load_pem_x509_certificates((await client.certificate(done)).encode())

    shown = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert shown.get_values_for_type(x509.DNSName) == names
    assert leaf.public_key() == key.public_key()
    leaf.verify_directly_issued_by(chain[0])


async def test_an_order_is_found_again_by_its_url_and_the_account_by_its_key(tmp_path: Path) -> None:
    account, key, proofs = new_key(), new_key(), dict[str, str]()
    async with open_pebble(tmp_path / "pebble") as pebble, answering(pebble, proofs):
        async with pebble.client() as http:
            first = AcmeClient(http, pebble.directory, account)
            url = await first.register("ada@provider.example", terms_agreed=True)
            order = await first.new_order(["controller.example"])
        async with pebble.client() as http:
            again = AcmeClient(http, pebble.directory, account)
            assert await again.register("ops@provider.example", terms_agreed=True) == url

            order = await prove(again, await again.order(order.url), proofs)
            await again.finalise(order, signing_request(key, ["controller.example"]))
            done = await settled(again, order, Status.PROCESSING)
            chain = await again.certificate(done)

    assert x509.load_pem_x509_certificate(chain.encode()).public_key() == key.public_key()


async def test_a_failed_validation_says_what_the_authority_saw(tmp_path: Path) -> None:
    async with open_pebble(tmp_path / "pebble") as pebble, pebble.client() as http:
        client = AcmeClient(http, pebble.directory, new_key())
        await client.register("ops@provider.example", terms_agreed=True)

        order = await prove(client, await client.new_order(["controller.example"]), {})
        [url] = order.authorizations
        problem = (await client.authorization(url)).problem

    assert order.status is Status.INVALID
    assert problem is not None
    assert "connection refused" in str(problem)


async def test_an_account_is_bound_to_the_customer_of_a_commercial_authority(tmp_path: Path) -> None:
    mac = b"thirty-two bytes of a shared key"
    keys = {"customer-1": base64.urlsafe_b64encode(mac).rstrip(b"=").decode()}
    async with open_pebble(tmp_path / "pebble", external=keys) as pebble, pebble.client() as http:
        client = AcmeClient(http, pebble.directory, new_key())
        with pytest.raises(Refused) as refused:
            await client.register("ops@provider.example", terms_agreed=True)
        wrong = ExternalAccount("customer-1", b"thirty-two bytes of another key.")
        with pytest.raises(Refused):
            await client.register("ops@provider.example", terms_agreed=True, external=wrong)

        external = ExternalAccount("customer-1", mac)
        url = await client.register("ops@provider.example", terms_agreed=True, external=external)

    assert refused.value.kind == "externalAccountRequired"
    assert url
