"""Folders that ask for a password: translated where the site asks those for it who may come, and wished for where the
passwords came along with an import."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from svc_webhost.apache.htaccess import parse
from svc_webhost.apache.passwords import PasswordFile, read_passwords
from svc_webhost.htaccess.judging import judge
from svc_webhost.htaccess.situation import Situation
from svc_webhost.htaccess.verdicts import Opinion, Protected, Verdict

BASIC = "AuthType Basic\nAuthName x\nAuthUserFile /home/x/.htpasswd\nRequire valid-user"
APR1 = "$apr1$Xj5aSgxr$2k0qFJeItxwaNxnxVEX8Z/"
PASSWORDS = read_passwords(f"ada:{APR1}\nbob:abNANd1rDfiNc\neve:secret".encode())
INSIDE = Situation(PurePosixPath("a/b"), php=False, wordpress=False, force_https=False)
IMPORTED = replace(INSIDE, passwords=PASSWORDS)


def opinions(text: str, situation: Situation) -> list[Opinion]:
    return [one.opinion for one in judge(parse(text), situation)]


def verdicts(text: str, situation: Situation) -> set[Verdict]:
    return {opinion.verdict for opinion in opinions(text, situation)}


def wished(text: str, situation: Situation) -> list[Protected]:
    wishes = [wish for opinion in opinions(text, situation) for wish in opinion.wishes]
    return [wish for wish in dict.fromkeys(wishes) if isinstance(wish, Protected)]


@pytest.mark.parametrize(
    ("text", "logins"),
    [
        (BASIC, {"ada", "bob"}),
        (f"{BASIC}\nAuthBasicProvider file\nAuthGroupFile /dev/null", {"ada", "bob"}),
        (BASIC.replace("valid-user", "user bob joe"), {"bob"}),
        (f"<IfModule mod_auth_basic.c>\n{BASIC}\n</IfModule>", {"ada", "bob"}),
    ],
)
def test_passwords_that_came_along_are_wished_for_and_translated_once_the_site_asks_for_them(
    text: str, logins: set[str]
) -> None:
    [wish] = wished(text, IMPORTED)
    told = replace(IMPORTED, protected={wish.path: frozenset(login for login, _ in wish.logins)})

    assert (wish.path, {login for login, _ in wish.logins}) == ("/a/b", logins)
    assert verdicts(text, IMPORTED) == {Verdict.BLOCKS}
    assert verdicts(text, told) == {Verdict.TRANSLATED}
    assert APR1 not in repr(wish) + repr(opinions(text, IMPORTED))


@pytest.mark.parametrize(
    ("text", "passwords", "why"),
    [
        (BASIC, "/home/x/.htpasswd is not in the archive", "is not in the archive"),
        (BASIC, PasswordFile({}, (("eve", "it is plain text"),)), "eve: it is plain text"),
        (BASIC, PasswordFile({}), "empty"),
        (BASIC.replace("valid-user", "user joe"), PASSWORDS, "joe: the file has no such login"),
        (BASIC.replace("Basic", "Digest"), PASSWORDS, "AuthType digest"),
        (BASIC.replace("valid-user", "group board"), PASSWORDS, "Require group board"),
        (f"{BASIC}\nAuthGroupFile /home/x/groups", PASSWORDS, "AuthGroupFile /home/x/groups"),
        (f"{BASIC}\nSatisfy any", PASSWORDS, "Satisfy any"),
        (f"<Files a.txt>\n{BASIC}\n</Files>", PASSWORDS, "a part of the folder"),
    ],
)
def test_what_cannot_be_brought_blocks_and_names_what_is_missing(
    text: str, passwords: PasswordFile | str, why: str
) -> None:
    situation = replace(INSIDE, passwords=passwords)

    assert wished(text, situation) == []
    assert verdicts(text, situation) == {Verdict.BLOCKS}
    assert all(why in opinion.reason for opinion in opinions(text, situation))


def test_a_folder_whose_name_no_protected_path_may_have_blocks() -> None:
    situation = replace(IMPORTED, folder=PurePosixPath("for members"))

    assert wished(BASIC, situation) == []
    assert "no protected path" in opinions(BASIC, situation)[0].reason


def test_the_whole_site_may_ask_for_a_password() -> None:
    [wish] = wished(BASIC, replace(IMPORTED, folder=PurePosixPath(".")))

    assert wish.path == "/"


def test_of_an_import_a_folder_within_a_protected_one_asks_for_its_own_passwords() -> None:
    around = {"/a": frozenset({"ada"})}

    assert [wish.path for wish in wished(BASIC, replace(IMPORTED, protected=around))] == ["/a/b"]
    missing = replace(INSIDE, protected=around, passwords="it is not in the archive")
    assert verdicts(BASIC, missing) == {Verdict.BLOCKS}
    assert verdicts(BASIC, replace(INSIDE, protected=around)) == {Verdict.TRANSLATED}


@pytest.mark.parametrize(
    ("protected", "verdict"),
    [
        ({"/a/b": {"ada"}}, Verdict.TRANSLATED),
        ({"/a/b": {"ada", "bob"}}, Verdict.TRANSLATED),
        ({"/": {"eve"}, "/a/b": {"ada"}}, Verdict.TRANSLATED),
        ({"/a/b": {"ada", "eve"}}, Verdict.BLOCKS),
        ({"/": {"ada"}, "/a": {"eve"}}, Verdict.BLOCKS),
        ({"/a/b/c": {"ada"}, "/b": {"ada"}}, Verdict.BLOCKS),
    ],
)
def test_where_users_are_named_the_site_lets_in_no_others(protected: dict[str, set[str]], verdict: Verdict) -> None:
    text = BASIC.replace("valid-user", "user ada bob")
    situation = replace(INSIDE, protected={path: frozenset(logins) for path, logins in protected.items()})

    assert verdicts(text, situation) == {verdict}
