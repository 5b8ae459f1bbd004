"""Which texts are names of sites."""

from __future__ import annotations

import pytest

from svc_actors.panel.sites.names import SiteName, is_below, site_name
from svc_common.errors import ErrorCode, ServiceError


@pytest.mark.parametrize(
    ("text", "name", "registrable"),
    [
        ("example.org", "example.org", "example.org"),
        ("Shop.Example.ORG.", "shop.example.org", "example.org"),
        ("a.b.example.co.uk", "a.b.example.co.uk", "example.co.uk"),
        ("tenant.github.io", "tenant.github.io", "tenant.github.io"),
        ("bücher.example", "xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("пример.рф", "xn--e1afmkfd.xn--p1ai", "xn--e1afmkfd.xn--p1ai"),
        ("faß.de", "xn--fa-hia.de", "xn--fa-hia.de"),
        ("shop.test", "shop.test", "shop.test"),
    ],
)
def test_a_name_is_kept_in_one_form(text: str, name: str, registrable: str) -> None:
    assert site_name(text) == SiteName(name, registrable)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "example",
        "-a.example",
        "a-.example",
        "a..example",
        "a_b.example",
        "*.example.org",
        "a b.example",
        "a.example\r\nX: y",
        "a.example\0",
        "$(id).example",
        "'a'.example",
        '"a".example',
        "../a.example",
        "a/b.example",
        "a.example:80",
        "user@a.example",
        f"{'a' * 64}.example",
        f"{'a.' * 127}example",
        "a" * 1_000_000,
        "1.2.3.4",
        "127.1",
        "0x7f.0x1",
        "2130706433",
        "[::1]",
        "::1",
        "ab--c.example",
        "xn--a.example",
        "ｅxample.org",
        "ﬁ.example",
        "bu\u0308cher.example",
        "ex\u202eample.org",
        "ex\u200bample.org",
        "☃.example",
        "א1a.example",
        "\ud800.example",
        "localhost",
        "a.localhost",
        "printer.local",
        "a.invalid",
        "a.onion",
        "1.0.0.127.in-addr.arpa",
        "co.uk",
        "github.io",
        "com",
        "xn--p1ai",
    ],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ServiceError) as refused:
        site_name(text)

    assert refused.value.code is ErrorCode.INVALID
    assert refused.value.message.isascii()
    assert "\n" not in refused.value.message
    assert len(refused.value.message) < 500


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("example.org..", "It has a dot too many."),
        ("a..example", "It has a dot too many."),
        ("1.2.3.4", "A name that ends in a number is an IP address."),
        ("intranet.internal", "No public domain ends in .internal: it is for names of private networks."),
        ("nas.home.arpa", "No public domain ends in .arpa"),
    ],
)
def test_a_refusal_says_why(text: str, why: str) -> None:
    with pytest.raises(ServiceError) as refused:
        site_name(text)

    assert why in refused.value.message


def test_a_letter_that_looks_like_another_makes_a_name_that_shows_it() -> None:
    assert site_name("pаypal.example").name == "xn--pypal-4ve.example"


@pytest.mark.parametrize(
    ("text", "www"),
    [
        ("example.org", "www.example.org"),
        ("example.co.uk", "www.example.co.uk"),
        ("bücher.example", "www.xn--bcher-kva.example"),
        ("shop.example.org", None),
        ("www.example.org", None),
        ("www.com", None),
        (f"{'a' * 63}.{'b' * 63}.{'c' * 63}.{'d' * 55}.uk", None),
    ],
)
def test_www_is_of_a_registered_domain(text: str, www: str | None) -> None:
    found = site_name(text).with_www

    assert (found.name if found else None) == www


def test_below_is_by_labels() -> None:
    assert is_below("a.example.org", "example.org")
    assert is_below("example.org", "example.org")
    assert not is_below("badexample.org", "example.org")
    assert not is_below("example.org", "a.example.org")
