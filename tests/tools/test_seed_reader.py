"""The guest's YAML reader against PyYAML: whatever PyYAML or json writes is read back as it was."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.image_paths import TOOLS

pytestmark = [pytest.mark.system, pytest.mark.isolated]

READER = TOOLS / "demo/root/usr/lib/svc/yaml.awk"

Document = str | bool | list["Document"] | dict[str, "Document"]


def read(text: str) -> dict[str, str]:
    done = subprocess.run(["busybox", "awk", "-f", READER], input=text.encode(), capture_output=True, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr.decode())
    found = {}
    for line in done.stdout.decode().split("\n")[:-1]:
        path, _, value = line.partition("\t")
        found[path] = value.replace("\\\\", "\0").replace("\\n", "\n").replace("\\t", "\t").replace("\0", "\\")
    return found


def flat(document: Document, path: str = "") -> Iterator[tuple[str, str]]:
    match document:
        case bool():
            yield path, "true" if document else "false"
        case str():
            yield path, document
        case [] | {} if not document:
            yield path, "[]" if isinstance(document, list) else "{}"
        case list():
            for index, item in enumerate(document):
                yield from flat(item, f"{path}/{index}".lstrip("/"))
        case dict():
            for key, item in document.items():
                yield from flat(item, f"{path}/{key}".lstrip("/"))


words = st.text(st.characters(codec="utf-8", min_codepoint=32, max_codepoint=0x2FF, exclude_characters="\x7f\x85\xa0"))
texts = st.one_of(words, st.lists(words, max_size=4).map("\n".join), st.just("ssh-ed25519 " + "A b " * 60))
keys = st.from_regex(r"[a-z][a-z0-9_-]{0,12}", fullmatch=True)
documents = st.recursive(
    st.one_of(texts, st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=12,
)
maps = st.dictionaries(keys, documents, min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(maps)
@example({"a": "0000 " * 40 + "0", "b": ["0\n\n0 " + "0000 " * 40 + "0"]})
@example({"a": "\\", "b": ["\\", "c\\d", {"\\e": "f\\"}]})
@example({"a": {"b": [{"c": "- x: 'y'"}, ["#", "a # b"]]}, "list": "root:$6$x$y\ndebian:R\n"})
def test_what_pyyaml_and_json_write_is_read_as_it_was(document: dict[str, Document]) -> None:
    wanted = dict(flat(document))
    assert read(yaml.safe_dump(document, allow_unicode=True)) == wanted
    assert read("#cloud-config\n" + yaml.safe_dump(document, default_flow_style=True)) == wanted
    assert read(json.dumps(document, indent=2)) == wanted


@pytest.mark.parametrize(
    "text",
    ["a: &x 1\nb: *x\n", "a: !!str 1\n", "a: [1, 2\n", "a: 1\n   b: 2\n", "a:\n\t- 1\n", 'a: "open\n', "a\nb: 1\n"],
)
def test_what_is_not_understood_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"^line \d+: "):
        read(text)


def test_a_hand_written_cloud_config_is_read() -> None:
    text = """\
#cloud-config
# a comment
users:
- default   # the image's own
- name: root
  ssh_authorized_keys:
    - ssh-ed25519 AAAA somebody@somewhere
    - 'it''s'
chpasswd: {expire: false, list: [a:b, "c:d"]}
write_files:
  - path: /etc/motd
    content: |
      # not a comment
        indented

      end
  - path: /etc/folded
    content: >-
      one
      line
empty:
"""
    assert read(text) == {
        "users/0": "default",
        "users/1/name": "root",
        "users/1/ssh_authorized_keys/0": "ssh-ed25519 AAAA somebody@somewhere",
        "users/1/ssh_authorized_keys/1": "it's",
        "chpasswd/expire": "false",
        "chpasswd/list/0": "a:b",
        "chpasswd/list/1": "c:d",
        "write_files/0/path": "/etc/motd",
        "write_files/0/content": "# not a comment\n  indented\n\nend\n",
        "write_files/1/path": "/etc/folded",
        "write_files/1/content": "one line",
        "empty": "",
    }
