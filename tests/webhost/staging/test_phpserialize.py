"""Texts in PHP's serialised data are changed as PHP itself would: its own serialize() and unserialize() are asked."""

from __future__ import annotations

import base64
import json
import subprocess
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from svc_webhost.staging.addresses import Addresses
from svc_webhost.staging.phpserialize import MOST_NESTED, changed

OLD, NEW = "shop.example.org", "staging.shop.example.org"
ADDRESSES = Addresses({OLD: NEW})
SERIALIZE = """
foreach (json_decode(stream_get_contents(STDIN), true, 512) as $value) {
    $twice = serialize(['twice' => serialize($value), 'value' => $value]);
    $out[] = base64_encode($twice);
}
echo json_encode($out);
"""
COMPARE = """
foreach (json_decode(stream_get_contents(STDIN), true, 512) as [$data, $wanted]) {
    $read = unserialize(base64_decode($data), ['allowed_classes' => false]);
    $out[] = is_array($read) && $read['value'] === $wanted && unserialize($read['twice']) === $wanted;
}
echo json_encode($out);
"""

texts = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            f"https://{OLD}/wp-content/über/日本.jpg",
            f"see http://{OLD} and //{OLD}/x?y=https%3A%2F%2F{OLD}%2F",
            json.dumps({"url": f"https:\\/\\/{OLD}\\/a", "ü": "€"}),
            f"mail@{OLD}",
            f"https://www.{OLD}.evil.example",
            f's:5:"https://{OLD}";',
            f"\0*\0https://{OLD}\r\n'\"\\",
        ]
    ),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**31), 2**31), st.sampled_from([0.5, -1.25e30]), texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), inner, max_size=4),
    ),
    max_leaves=12,
)


def php(code: str, told: Any) -> Any:
    ended = subprocess.run(
        ["php", "-n", "-d", "serialize_precision=-1", "-r", code],
        input=json.dumps(told).encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    return json.loads(ended.stdout)


def replaced(value: Any) -> Any:
    """What shall come out: texts replaced, keys kept."""
    if isinstance(value, str):
        raw = value.encode()
        return changed(raw, ADDRESSES.replace).decode()
    if isinstance(value, list):
        return [replaced(each) for each in value]
    if isinstance(value, dict):
        return {key: replaced(each) for key, each in value.items()}
    return value


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(values, min_size=1, max_size=30))
def test_php_reads_what_was_changed_and_finds_the_new_address(told: list[Any]) -> None:
    written = [base64.b64decode(each) for each in php(SERIALIZE, told)]

    new = [base64.b64encode(changed(each, ADDRESSES.replace)).decode() for each in written]

    assert php(COMPARE, list(zip(new, map(replaced, told), strict=True))) == [True] * len(told)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_what_is_no_serialised_data_is_never_cut_or_grown(data: bytes) -> None:
    assert changed(data, lambda text: text) == data


@settings(max_examples=200, deadline=None)
@given(values, st.integers(0, 400))
def test_data_that_was_cut_off_stays_as_it_is(value: Any, cut: int) -> None:
    whole = f'a:1:{{s:1:"u";s:{len(OLD) + 8}:"https://{OLD}";}}'.encode()
    short = whole[: cut % len(whole)]

    assert changed(short, ADDRESSES.replace) in (short, ADDRESSES.replace(short))
    if short.startswith(b"a:1:{"):
        assert changed(short, ADDRESSES.replace) == short


URL = f"https://{OLD}"
NEW_URL = f"https://{NEW}"


def text(value: str) -> str:
    return f's:{len(value.encode())}:"{value}";'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f'O:8:"stdClass":1:{{{text("u")}{text(URL)}}}', f'O:8:"stdClass":1:{{{text("u")}{text(NEW_URL)}}}'),
        (f"a:1:{{{text(URL)}i:1;}}", f"a:1:{{{text(URL)}i:1;}}"),
        (f'C:3:"Own":{len(text(URL))}:{{{text(URL)}}}', f'C:3:"Own":{len(text(NEW_URL))}:{{{text(NEW_URL)}}}'),
        ('C:3:"Own":6:{abc;d}}', 'C:3:"Own":6:{abc;d}}'),
        (f'C:3:"Own":{len(URL)}:{{{URL}}}', f'C:3:"Own":{len(URL)}:{{{URL}}}'),
        (f"a:2:{{i:0;{text(URL)}i:1;R:2;}}", f"a:2:{{i:0;{text(NEW_URL)}i:1;R:2;}}"),
        (f'a:1:{{i:0;E:{len("A:https")}:"A:https";}}', 'a:1:{i:0;E:7:"A:https";}'),
        (f'S:{len(URL)}:"\\68ttps://{OLD}";', text(NEW_URL)),
        ("i:5;", "i:5;"),
    ],
    ids=["object", "key", "own data", "own text", "opaque", "reference", "enum", "escaped", "number"],
)
def test_every_form_of_the_grammar(before: str, after: str) -> None:
    assert changed(before.encode(), ADDRESSES.replace) == after.encode()


def test_deep_arrays_take_no_stack() -> None:
    depth = 50_000
    data = b"a:1:{i:0;" * depth + text(URL).encode() + b"}" * depth

    assert text(NEW_URL).encode() in changed(data, ADDRESSES.replace)


def test_data_in_data_ends_somewhere() -> None:
    data = URL.encode()
    for _ in range(MOST_NESTED + 2):
        data = b's:%d:"%b";' % (len(data), data)

    assert changed(data, ADDRESSES.replace) == data


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"https://{OLD}", f"https://{NEW}"),
        (f"http://{OLD}:8080/x", f"http://{NEW}:8080/x"),
        (f"//{OLD}.", f"//{NEW}."),
        (f"//{OLD.upper()}/", f"//{NEW}/"),
        (f"https:\\/\\/{OLD}\\/x", f"https:\\/\\/{NEW}\\/x"),
        (f"https:\\\\/\\\\/{OLD}", f"https:\\\\/\\\\/{NEW}"),
        (f"https%3A%2F%2F{OLD}%2F", f"https%3A%2F%2F{NEW}%2F"),
        (f"https://{OLD}.uk", f"https://{OLD}.uk"),
        (f"https://my{OLD}", f"https://my{OLD}"),
        (f"https://{OLD}-old/", f"https://{OLD}-old/"),
        (f"ada@{OLD}", f"ada@{OLD}"),
        (f"https://{NEW}/", f"https://{NEW}/"),
        ("/srv/sites/s1001/public", "/srv/sites/s1002/public"),
        ("\\/srv\\/sites\\/s1001\\/public", "\\/srv\\/sites\\/s1002\\/public"),
        ("/srv/sites/s10011/public", "/srv/sites/s10011/public"),
    ],
)
def test_addresses_are_replaced_where_they_stand_and_nowhere_else(before: str, after: str) -> None:
    addresses = Addresses({OLD: NEW}, ("/srv/sites/s1001", "/srv/sites/s1002"))

    assert addresses.replace(before.encode()) == after.encode()
