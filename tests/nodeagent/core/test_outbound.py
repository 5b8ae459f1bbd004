"""Requests to servers that somebody else named: where they go, and what is taken from them."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import httpx
import pytest
import trio

from svc_nodeagent.outbound import AddressRefused, Resolve, client, is_public


def names(**known: list[str]) -> Resolve:
    async def resolve(host: str, port: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        return known.get(host.partition(".")[0], [host])

    return resolve


async def test_the_address_that_was_looked_at_is_the_one_dialled_under_the_servers_own_name() -> None:
    dialled: list[httpx.Request] = []

    def server(request: httpx.Request) -> httpx.Response:
        dialled.append(request)
        return httpx.Response(200, text="sums")

    resolve = names(mirror=["93.184.215.14"])
    async with client(timeout=5, resolve=resolve, transport=httpx.MockTransport(server)) as http:
        answer = await http.get("https://mirror.example:8443/SUMS")

    [request] = dialled
    assert (request.url.host, request.url.port) == ("93.184.215.14", 8443)
    assert request.headers["Host"] == "mirror.example:8443"
    assert request.extensions["sni_hostname"] == "mirror.example"
    assert (answer.text, answer.url.host) == ("sums", "mirror.example")


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "169.254.169.254", "100.100.100.200", "168.63.129.16", "224.0.0.1"),
        *("::1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::7f00:1", "2002:7f00:1::"),
        *("fe80::1", "fec0::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "4000::1"),
    ],
)
def test_an_address_of_no_public_network_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


async def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    def server(request: httpx.Request) -> httpx.Response:
        if request.url.host == "2606:2800:21f::1":
            raise httpx.ConnectError("no route")
        return httpx.Response(200, text=request.url.host)

    resolve = names(mirror=["2606:2800:21f::1", "93.184.215.14"])
    async with client(timeout=5, resolve=resolve, transport=httpx.MockTransport(server)) as http:
        assert (await http.get("https://mirror.example/")).text == "93.184.215.14"


@pytest.mark.parametrize("redirected", [False, True])
async def test_what_is_believed_for_its_sender_is_not_fetched_without_tls(redirected: bool) -> None:
    asked: list[str] = []

    def server(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.scheme)
        return httpx.Response(302, headers={"Location": "http://mirror.example/SUMS"})

    resolve = names(mirror=["93.184.215.14"])
    scheme = "https" if redirected else "http"
    async with client(timeout=5, https_only=True, resolve=resolve, transport=httpx.MockTransport(server)) as http:
        with pytest.raises(AddressRefused, match="by TLS"):
            await http.get(f"{scheme}://mirror.example/SUMS")

    assert asked == (["https"] if redirected else [])


async def test_a_network_that_the_operator_allows_is_reached_and_its_neighbour_is_not() -> None:
    resolve = names(mirror=["10.1.2.3"], other=["10.2.2.3"])
    transport = httpx.MockTransport(lambda request: httpx.Response(200))
    async with client(timeout=5, allowed=[ip_network("10.1.0.0/16")], resolve=resolve, transport=transport) as http:
        assert (await http.get("https://mirror.example/")).status_code == 200
        with pytest.raises(AddressRefused):
            await http.get("https://other.example/")
