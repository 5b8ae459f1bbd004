"""CAA and TXT records mean what the person who adds them means, and a zone says which certificates it forbids."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from svc_actors.panel.dns.caa import CertificateOrder, forbidden
from svc_actors.panel.dns.records import DATA, NewRecord
from svc_webhost.knot.meaning import issuer_of
from tests.panel.dns.zones import World

LE = "letsencrypt.org"


@pytest.mark.parametrize(
    ("pasted", "meant"),
    [
        ('"v=spf1 -all"', "v=spf1 -all"),
        ('"v=DKIM1; k=rsa; p=AAA" "BBB"', "v=DKIM1; k=rsa; p=AAABBB"),
        ('( "v=DKIM1\\; k=rsa; "  "p=AAA" )', "v=DKIM1; k=rsa; p=AAA"),
        ("v=DMARC1\\; p=none", "v=DMARC1; p=none"),
        ("\u201cv=spf1 -all\u201d", "v=spf1 -all"),
        ('"gr\\195\\188n \\"x\\" \\\\"', 'grün "x" \\'),
        ('he said "yes"', 'he said "yes"'),
        ('v=spf1 "x"; \\ ü', 'v=spf1 "x"; \\ ü'),
        ('""', ""),
        ('"' + "A" * 400 + '"', "A" * 400),
    ],
)
async def test_a_text_pasted_with_its_quotes_is_published_without_them(world: World, pasted: str, meant: str) -> None:
    answer = await world.add("@", type="TXT", text=pasted)

    assert answer.status_code == 201, answer.text
    assert answer.json()["record"]["data"]["text"] == meant


@pytest.mark.parametrize("text", ['"a" b "c"', '"', '"a\\010"', '"a\\255"', '"a\\'])
async def test_quotes_that_do_not_match_are_refused(world: World, text: str) -> None:
    answer = await world.add("@", type="TXT", text=text if text.endswith('"') else f'{text}"')

    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize(
    ("given", "served"),
    [
        (f'"{LE}"', LE),
        (f"'{LE}'", LE),
        (f"{LE}.", LE),
        (f" {LE} ; validationmethods=dns-01", f"{LE}; validationmethods=dns-01"),
        ("digicert.com; account=23456", "digicert.com; account=23456"),
        (";", ";"),
        ("%%%%%", None),
        ("", None),
        ("https://letsencrypt.org", None),
        ("Let's Encrypt", None),
        ("security@example.com", None),
        ("letsencrypt.org,digicert.com", None),
        ("letsencrypt.org digicert.com", None),
        ("letsencrypt.org; policy", None),
    ],
)
async def test_a_caa_value_that_names_nobody_is_refused(world: World, given: str, served: str | None) -> None:
    answer = await world.add("@", type="CAA", tag="issue", value=given)

    if served is None:
        assert answer.status_code == 400, answer.text
        assert "letsencrypt.org" in answer.json()["error"]["message"]
    else:
        assert answer.status_code == 201, answer.text
        assert answer.json()["record"]["data"]["value"] == served
        assert world.knot.answers("example.test", "CAA") == {f'0 issue "{served}"'}


def caa(name: str, tag: str, value: str) -> NewRecord:
    return NewRecord(name, 300, DATA.validate_python({"type": "CAA", "tag": tag, "value": value}))


def alias(name: str, target: str) -> NewRecord:
    return NewRecord(name, 300, DATA.validate_python({"type": "CNAME", "target": target}))


ORDER = CertificateOrder(
    ["example.test", "www.example.test", "a.b.example.test", "*.example.test"], "dns-01", [LE], "https://a/1"
)


@pytest.mark.parametrize(
    ("records", "names"),
    [
        ([], []),
        ([caa("example.test", "issue", LE)], []),
        ([caa("example.test", "issue", "LetsEncrypt.ORG")], []),
        ([caa("example.test", "issue", "digicert.com"), caa("example.test", "issue", LE)], []),
        ([caa("example.test", "issue", ";")], ORDER.names),
        ([caa("example.test", "issue", "digicert.com")], ORDER.names),
        ([caa("example.test", "issue", f'"{LE}"')], ORDER.names),
        ([caa("example.test", "iodef", "mailto:a@example.test")], []),
        ([caa("example.test", "issuemail", ";")], []),
        ([caa("example.test", "issuewild", ";")], ["*.example.test"]),
        ([caa("example.test", "issuewild", LE), caa("example.test", "issue", ";")], ORDER.names[:3]),
        # The nearest set counts alone.
        ([caa("example.test", "issue", ";"), caa("b.example.test", "issue", LE)], [*ORDER.names[:2], ORDER.names[3]]),
        ([caa("b.example.test", "issue", ";")], ["a.b.example.test"]),
        (
            [caa("b.example.test", "iodef", "mailto:a@b.test"), caa("example.test", "issue", ";")],
            [*ORDER.names[:2], ORDER.names[3]],
        ),
        ([alias("www.example.test", "cdn.example.test"), caa("cdn.example.test", "issue", ";")], ["www.example.test"]),
        ([alias("www.example.test", "x.example.net"), caa("example.test", "issue", ";")], ORDER.names),
        ([caa("example.test", "issue", f"{LE}; validationmethods=dns-01,http-01")], []),
        ([caa("example.test", "issue", f"{LE}; validationmethods=http-01")], ORDER.names),
        ([caa("example.test", "issue", f"{LE}; accounturi=https://a/1")], []),
        ([caa("example.test", "issue", f"{LE}; accounturi=https://a/2")], ORDER.names),
    ],
)
def test_names_are_forbidden_as_rfc_8659_has_it(records: Sequence[NewRecord], names: list[str]) -> None:
    assert forbidden("example.test", records, ORDER) == names


def test_names_of_other_zones_are_not_forbidden() -> None:
    order = CertificateOrder(["example.net", "badexample.test"], "http-01", [LE], None)

    assert forbidden("example.test", [caa("example.test", "issue", ";")], order) == []


async def test_a_zone_that_forbids_the_authority_of_its_site_says_so_as_long_as_it_does(world: World) -> None:
    await world.panel.database.execute(
        """INSERT INTO acme_accounts (directory, sealed_key, contact, caa_identities)
           VALUES ('https://authority.test/d', 'x', 'ops@example.com', '{letsencrypt.org}')"""
    )
    await world.panel.database.execute(
        """INSERT INTO acme_certificates (name, directory, names)
           VALUES ('site:' || $1::uuid, 'https://authority.test/d', '{example.test}')""",
        world.site,
    )

    forbids = await world.add("@", type="CAA", tag="issue", value="digicert.com")
    listed = (await world.ada.get(f"/sites/{world.site}/dns")).json()["zone"]
    allows = await world.add("@", type="CAA", tag="issue", value=LE)
    records = f"/sites/{world.site}/dns/records"
    removed = await world.ada.delete(f"{records}/{allows.json()['record']['id']}")
    other = await world.ada.call("PATCH", f"{records}/{forbids.json()['record']['id']}", {"name": "mail"})

    warning = forbids.json()["zone"]["warning"]
    assert "certify example.test" in warning
    assert "the value letsencrypt.org" in warning
    assert listed["warning"] == warning
    assert allows.json()["zone"]["warning"] is None
    assert removed.json()["warning"] == warning
    assert other.json()["zone"]["warning"] is None


def test_conditions_of_an_authority_are_read() -> None:
    issuer = issuer_of("CA1.example ; account = 230123 ; x=")

    assert (issuer.domain, issuer.parameters) == ("ca1.example", {"account": "230123", "x": ""})
