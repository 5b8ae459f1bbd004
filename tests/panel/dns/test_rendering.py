"""What is told to Knot, as values: names, texts, the stream of its control socket, and how two zones differ."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from svc_webhost.knot import Authority, KnotError, RecordData, ResourceRecord, Zone
from svc_webhost.knot.configuration import zone_configuration
from svc_webhost.knot.control import Decoder, Item, Unit, UnitType, encoded
from svc_webhost.knot.data import split_text
from svc_webhost.knot.names import host_name, is_within, to_ascii
from svc_webhost.knot.zone import ServedZone, difference, mailbox, next_serial

DATA: TypeAdapter[RecordData] = TypeAdapter(RecordData)
AUTHORITY = Authority(("ns1.panel.test",), "hostmaster@panel.test")
NOW = 1_800_000_000
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=900)


@given(TEXT)
def test_any_text_is_read_back_as_it_was_given(text: str) -> None:
    data = DATA.validate_python({"type": "TXT", "text": text})

    rendered = ResourceRecord.of("t.example.test", 300, data)
    read = ResourceRecord.parsed("T.example.test.", "300", "TXT", rendered.data)

    assert read == rendered
    assert rendered.data.isascii()
    assert "\n" not in rendered.data


@given(st.binary(max_size=2000))
def test_a_text_is_split_into_strings_of_255_bytes(text: bytes) -> None:
    strings = split_text(text)

    assert b"".join(strings) == text
    assert all(len(string) <= 255 for string in strings)
    assert all(len(string) == 255 for string in strings[:-1])
    assert strings


ITEMS = st.dictionaries(
    st.sampled_from(Item), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=300), max_size=6
)
UNITS = st.lists(
    st.one_of(
        st.builds(Unit, st.sampled_from([UnitType.DATA, UnitType.EXTRA]), ITEMS),
        st.builds(Unit, st.just(UnitType.BLOCK), st.just({})),
    ),
    max_size=8,
)


@given(UNITS, st.integers(1, 40))
def test_the_control_stream_is_read_whatever_its_pieces(units: list[Unit], size: int) -> None:
    stream = b"".join(encoded(unit) for unit in [*units, Unit(UnitType.BLOCK, {})])
    decoder = Decoder()

    read = [unit for start in range(0, len(stream), size) for unit in decoder.feed(stream[start : start + size])]

    assert read == [*units, Unit(UnitType.BLOCK, {})]


@given(st.binary(max_size=200))
def test_a_stream_that_is_not_knots_is_an_error_and_no_crash(stream: bytes) -> None:
    with suppress(KnotError):
        list(Decoder().feed(stream))


@pytest.mark.parametrize("text", ["a\0b", "x" * 65_536])
def test_what_no_item_can_hold_is_not_told(text: str) -> None:
    with pytest.raises(KnotError):
        encoded(Unit(UnitType.DATA, {Item.DATA: text}))


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Example.TEST.", "example.test"),
        ("bücher.example.test", "xn--bcher-kva.example.test"),
        ("BÜCHER.example。test", "xn--bcher-kva.example.test"),
        ("_dmarc.example.test", "_dmarc.example.test"),
        ("*.example.test", "*.example.test"),
    ],
)
def test_names_have_one_form(given: str, name: str) -> None:
    assert to_ascii(given, wildcard=True) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "a..test",
        "-a.test",
        "a-.test",
        "a b.test",
        "a;b.test",
        'a"b.test',
        "a\\.test",
        "a\n.test",
        "x" * 64 + ".test",
        ".".join(["x" * 63] * 4),
        "a.*.test",
        "*",
        "xn--\u0000.test",
        "xn--zzzzzz99999.test",
        "☃\u202e.test",
        "$ORIGIN.test",
        "@",
    ],
)
def test_what_is_no_name_is_refused_in_words(name: str) -> None:
    with pytest.raises(ValueError):
        to_ascii(name, wildcard=True)


@pytest.mark.parametrize("name", ["mail", "192.0.2.1", "_x.example.test", "*.example.test", "a.test\n"])
def test_a_host_has_a_full_name(name: str) -> None:
    with pytest.raises(ValueError):
        host_name(name)


def test_a_name_is_within_a_zone_by_labels() -> None:
    assert is_within("a.example.test", "example.test")
    assert is_within("example.test", "example.test")
    assert not is_within("badexample.test", "example.test")


@pytest.mark.parametrize("name", ['a"b', "a/b", "../x", "a\nb", ""])
def test_a_zones_file_is_never_anothers(name: str) -> None:
    with pytest.raises(ValueError):
        zone_configuration(name)


def txt(owner: str, text: str, ttl: int = 300) -> ResourceRecord:
    return ResourceRecord.of(owner, ttl, DATA.validate_python({"type": "TXT", "text": text}))


RECORDS = st.frozensets(
    st.builds(txt, st.sampled_from(["example.test", "a.example.test", "b.example.test"]), st.sampled_from("xyz")),
    max_size=6,
)


@given(RECORDS, RECORDS, st.booleans())
def test_the_difference_makes_one_zone_of_the_other(old: frozenset[Any], new: frozenset[Any], other: bool) -> None:
    authority = Authority(("ns9.panel.test",), "x@panel.test") if other else AUTHORITY
    soa = ResourceRecord.parsed("example.test", "3600", "SOA", authority.soa(77))
    served = ServedZone.of([*Zone("example.test", authority, old).served, soa])
    wanted = Zone("example.test", AUTHORITY, new)

    changes = difference(wanted, served, now=NOW)
    left = {record for record in served.records if (record.owner, record.type) not in changes.unset}

    assert left | set(changes.set) == wanted.served
    assert not left & set(changes.set)
    assert (changes.soa is None) is not other
    assert bool(changes) is (old != new or other)


def test_an_empty_zone_gets_a_soa_with_a_serial_that_never_goes_back() -> None:
    changes = difference(Zone("example.test", AUTHORITY), ServedZone.of(()), now=NOW, last_serial=NOW + 50)

    assert changes.soa is not None
    assert int(changes.soa.data.split()[2]) == NOW + 51


@given(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 33)))
def test_a_serial_is_always_ahead_of_the_last(last: int, now: int) -> None:
    following = next_serial(last, now)

    assert 0 < (following - last) % (1 << 32) < 1 << 31


def test_a_mailbox_keeps_its_dots() -> None:
    assert mailbox("dns.admin@panel.test") == "dns\\.admin.panel.test."


BAD: list[dict[str, Any]] = [
    {"type": "A", "address": "2001:db8::1"},
    {"type": "A", "address": "192.0.2.256"},
    {"type": "A", "address": 3221225985},
    {"type": "A", "address": "192.0.2.1\n"},
    {"type": "AAAA", "address": "fe80::1%eth0"},
    {"type": "AAAA", "address": "::ffff:192.0.2.1"},
    {"type": "CNAME", "target": "www"},
    {"type": "CNAME", "target": "a b.example.test"},
    {"type": "MX", "preference": 65536, "exchange": "mail.example.net"},
    {"type": "MX", "preference": -1, "exchange": "mail.example.net"},
    {"type": "MX", "preference": 10, "exchange": "192.0.2.1"},
    {"type": "MX", "preference": 10, "exchange": "."},
    {"type": "MX", "preference": 10, "exchange": "mail.example.net; rm -rf /"},
    {"type": "TXT", "text": "a\nb"},
    {"type": "TXT", "text": "a\0b"},
    {"type": "TXT", "text": "ü" * 3000},
    {"type": "SRV", "priority": 1, "weight": 2, "port": 70000, "target": "sip.example.net"},
    {"type": "CAA", "tag": "steal", "value": "x"},
    {"type": "CAA", "tag": "iodef", "value": "nobody"},
    {"type": "CAA", "tag": "issue", "value": "ü"},
    {"type": "NS", "target": "."},
    {"type": "PTR", "target": "_x.example.net"},
    {"type": "TLSA", "usage": 4, "selector": 0, "matching": 1, "certificate": "ab" * 32},
    {"type": "TLSA", "usage": 3, "selector": 1, "matching": 1, "certificate": "ab" * 31},
    {"type": "TLSA", "usage": 3, "selector": 1, "matching": 0, "certificate": "abc"},
    {"type": "SSHFP", "algorithm": 5, "fingerprint_type": 2, "fingerprint": "ab" * 32},
    {"type": "SSHFP", "algorithm": 4, "fingerprint_type": 2, "fingerprint": "zz" * 32},
    {"type": "DS", "key_tag": 1, "algorithm": 13, "digest_type": 2, "digest": "ab" * 20},
    {"type": "SOA", "target": "a.test"},
    {"type": "a", "address": "192.0.2.1"},
    {"type": "A", "address": "192.0.2.1", "ttl": 5},
]


@pytest.mark.parametrize("data", BAD, ids=str)
def test_data_that_a_zone_cannot_hold_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DATA.validate_python(data)
