"""wp-config.php: whatever a value is, it stays one value; and no two sites have the same salts."""

from __future__ import annotations

import re

import pytest

from svc_webhost.wordpress.configuration import SiteDatabase, configuration

DEFINED = re.compile(r"^define\('([A-Z_]+)', '((?:[^'\\]|\\['\\])*)'\);$", re.MULTILINE)


def written(password: str = "secret", domain: str = "shop.example.com") -> str:
    return configuration(domain, SiteDatabase("s1001_wordpress", "s1001_wordpress", password))


def values(text: str) -> dict[str, str]:
    """As PHP reads strings in single quotes."""
    return {name: re.sub(r"\\(['\\])", r"\1", value) for name, value in DEFINED.findall(text)}


def test_it_names_the_database() -> None:
    told = values(written())

    assert told["DB_NAME"] == told["DB_USER"] == "s1001_wordpress"
    assert told["DB_HOST"] == "localhost"
    assert told["DB_CHARSET"] == "utf8mb4"


def test_nobody_edits_php_in_the_administration_pages() -> None:
    assert "define('DISALLOW_FILE_EDIT', true);" in written()


@pytest.mark.parametrize("password", ["'", "\\", "\\'", "'); system('id'); //", "$x {$y}", "\n?>", "ü\\\\"])
def test_no_value_ends_its_string(password: str) -> None:
    told = values(written(password))

    assert told["DB_PASSWORD"] == password
    assert set(told) == set(values(written()))


def test_each_has_eight_salts_of_its_own() -> None:
    first, second = values(written()), values(written())

    salts = [name for name in first if name.endswith(("_KEY", "_SALT"))]
    assert len(salts) == 8
    assert len({first[name] for name in salts} | {second[name] for name in salts}) == 16
    assert all(len(first[name]) >= 64 for name in salts)


def test_a_nul_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        written("a\0b")
