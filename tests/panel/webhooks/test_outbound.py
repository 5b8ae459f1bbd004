"""Where deliveries never go: what a URL may be, which addresses are public, and what is dialled in the end."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path

import pytest
import trio

from svc_actors.store import Database
from svc_actors.webhooks.receivers import ReceiverUrl
from svc_actors.webhooks.settings import WebhookSettings, webhook_settings
from svc_common.outbound import AddressRefused, Outbound, is_public, networks
from tests.support.webhooks import NAME, leads_here, open_webhooks

REFUSED_URLS = [
    "http://receiver.example/",
    "ftp://receiver.example/",
    "//receiver.example/",
    "receiver.example",
    "https://",
    "https:///path",
    "https://user@receiver.example/",
    "https://user:password@receiver.example/",
    "https://receiver.example@127.0.0.1/",
    "https://receiver.example\\@127.0.0.1/",
    "https://127.0.0.1\\.receiver.example/",
    "https://receiver.example#@127.0.0.1/",
    "https://receiver.example/#fragment",
    "https://receiver.example:0/",
    "https://receiver.example:65536/",
    "https://receiver.example:443:80/",
    "https://receiver.example:/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.0.0.1/",
    "https://0x/",
    "https://017700000001/",
    "https://0177.0.0.1/",
    "https://127.1/",
    "https://127.0.1/",
    "https://127.0.0.1./",
    "https://[::1/",
    "https://[127.0.0.1]/",
    "https://[fe80::1%25eth0]/",
    "https://[v1.fe80]/",
    "https://receiver..example/",
    "https://.receiver.example/",
    "https://receiver.example./",
    "https://-receiver.example/",
    "https://receiver_1.example/",
    "https://ｒeceiver.example/",
    "https://receiver.example/\r\nX-Injected: 1",
    "https://receiver.example/ path",
    "https://receiver.example/" + "a" * 2000,
]

NOT_PUBLIC = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "169.254.170.2",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::808:808",
    "100::1",
    "2001::1",
    "2001:0:808:808::1",
    "2001:2::1",
    "2001:10::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "2002:808:808::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]

PUBLIC = ["8.8.8.8", "1.1.1.1", "100.63.255.255", "100.128.0.1", "172.32.0.1", "198.20.0.1", "2001:4860:4860::8888"]


@pytest.mark.parametrize("url", REFUSED_URLS)
def test_a_url_that_is_not_plainly_one_of_a_receiver_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        ReceiverUrl.parse(url)


@pytest.mark.parametrize(
    ("url", "parsed", "authority"),
    [
        ("https://receiver.example", ReceiverUrl("receiver.example", 443, "/"), "receiver.example"),
        ("HTTPS://Receiver.Example:443/A?b=@c", ReceiverUrl("receiver.example", 443, "/A?b=@c"), "receiver.example"),
        ("https://receiver.example?key=1", ReceiverUrl("receiver.example", 443, "/?key=1"), "receiver.example"),
        ("https://1.1.1.1:8443/", ReceiverUrl("1.1.1.1", 8443, "/"), "1.1.1.1:8443"),
        ("https://[2606:4700::1]:8443/", ReceiverUrl("2606:4700::1", 8443, "/"), "[2606:4700::1]:8443"),
        ("https://xn--bcher-kva.example/", ReceiverUrl("xn--bcher-kva.example", 443, "/"), "xn--bcher-kva.example"),
    ],
)
def test_a_url_is_read_as_every_program_reads_it(url: str, parsed: ReceiverUrl, authority: str) -> None:
    found = ReceiverUrl.parse(url)

    assert found == parsed
    assert found.authority == authority


@pytest.mark.parametrize("text", NOT_PUBLIC)
async def test_an_address_that_is_not_public_is_not_dialled(text: str) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        return ["8.8.8.8", text]

    assert not is_public(ip_address(text))
    for host in (text, "receiver.example"):  # One bad address among good ones is enough.
        with pytest.raises(AddressRefused, match="not an address of the public Internet"):
            await Outbound(resolve=resolve).addresses(host, 443)


@pytest.mark.parametrize("text", PUBLIC)
def test_an_address_of_the_public_internet_is_one(text: str) -> None:
    assert is_public(ip_address(text))


async def test_a_scoped_address_is_not_dialled() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        return ["2606:4700::1%2"]

    with pytest.raises(AddressRefused):
        await Outbound(resolve=resolve).addresses("receiver.example", 443)


async def test_this_server_is_reached_at_the_port_of_its_sites_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svc_common.outbound.is_public", lambda address: True)  # As if it had a public address.
    outbound = Outbound(sites_port=443, resolve=leads_here)

    assert await outbound.addresses("panel.example", 443) == ["127.0.0.1"]
    for port in (22, 5432, 7443):
        with pytest.raises(AddressRefused, match="this server"):
            await outbound.addresses("panel.example", port)


async def test_what_the_operator_allows_is_reached_and_its_neighbour_is_not() -> None:
    outbound = Outbound(networks("10.20.0.0/16, fd12::/64"))

    assert await outbound.addresses("10.20.1.2", 8443) == ["10.20.1.2"]
    assert await outbound.addresses("fd12::7", 8443) == ["fd12::7"]
    for address in ("10.21.0.1", "fd12:0:0:1::7", "127.0.0.1"):
        with pytest.raises(AddressRefused):
            await outbound.addresses(address, 8443)


def test_the_operator_of_the_server_allows_more_by_its_environment() -> None:
    given = {"SVC_WEBHOOK_NETWORKS": "10.20.0.0/16, fd12::7", "SVC_WEBHOOK_CA_FILE": "/etc/ssl/house.pem"}

    assert webhook_settings({}) == WebhookSettings(networks=(), ca_file=None)
    assert webhook_settings(given) == WebhookSettings(
        networks=networks("10.20.0.0/16 fd12::7/128"), ca_file=Path("/etc/ssl/house.pem")
    )
    with pytest.raises(ValueError, match="SVC_WEBHOOK_NETWORKS"):
        webhook_settings({"SVC_WEBHOOK_NETWORKS": "everything"})


@pytest.mark.parametrize("text", ["10.20.0.1/16", "everything", "10.20.0.0/33"])
def test_a_setting_that_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        networks(text)


async def test_a_name_that_is_led_elsewhere_after_it_was_looked_at_reaches_nothing(
    panel_database: Database, tmp_path: Path
) -> None:
    answers = [["8.8.8.8"], ["127.0.0.1"]]

    async def resolve(host: str, port: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async with open_webhooks(panel_database, tmp_path, resolve=resolve, allowed="127.0.0.9/32") as world:
        receiver = await world.receiver()
        endpoint = await world.endpoint(receiver)

        await world.emit()
        delivery = await world.recorded(endpoint["id"], attempts=1)

    assert receiver.received == []
    assert delivery["status"] == "retrying"
    assert delivery["error"] == f"{NAME} is 127.0.0.1, which is not an address of the public Internet"


async def test_a_name_is_resolved_once_and_what_was_looked_at_is_dialled(
    panel_database: Database, tmp_path: Path
) -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        asked.append(host)
        return ["127.0.0.1"]

    async with open_webhooks(panel_database, tmp_path, resolve=resolve) as world:
        receiver = await world.receiver()
        endpoint = await world.endpoint(receiver)
        asked.clear()

        await world.emit()
        delivery = await world.recorded(endpoint["id"], attempts=1)

    assert asked == [NAME]
    assert delivery["status"] == "delivered"


async def test_proxies_of_the_environment_are_not_used(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as proxy:
        proxy.bind(("127.0.0.1", 0))
        proxy.listen()
        proxy.settimeout(0)
        for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        async with open_webhooks(panel_database, tmp_path) as world:
            receiver = await world.receiver()
            endpoint = await world.endpoint(receiver)

            await world.emit()
            delivery = await world.recorded(endpoint["id"], attempts=1)

        assert delivery["status"] == "delivered"
        with pytest.raises(BlockingIOError):
            proxy.accept()
