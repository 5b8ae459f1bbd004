"""Where the passwords of a folder lie in an archive: beneath a home of it, and nowhere else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc_webhost.apache.passwords import MOST_BYTES
from svc_webhost.archives.fetched import named_passwords
from svc_webhost.archives.model import Account, Format, FoundPasswords, FoundSite, Survey, account_of
from svc_webhost.archives.passwords import names_no_password_file, password_candidates

APR1 = "$apr1$Xj5aSgxr$2k0qFJeItxwaNxnxVEX8Z/"
ROOT = "x/homedir/public_html"
PASSWD = "x/homedir/.htpasswds/passwd"


def account(old_home: str | None = "/home/ada/") -> Account:
    shop = FoundSite("shop.example", ROOT, without=[f"{ROOT}/addon"], old_home=old_home, home_in_archive="x/homedir")
    blog = FoundSite("blog.example", f"{ROOT}/addon", old_home=None, home_in_archive="")
    return Account(Format.CPANEL, [shop, blog])


def found(
    named: str, contents: dict[str, bytes], *, folder: str = "/members", home: str | None = "/home/ada/"
) -> FoundPasswords:
    text = f"AuthType Basic\nAuthUserFile {named}\nRequire valid-user\n".encode()
    [one] = password_candidates(Survey({f"{ROOT}{folder}/.htaccess": text}), account(home))
    return one.resolve({path: content for path, content in contents.items() if path in one.files})


@pytest.mark.parametrize(
    ("named", "file"),
    [
        ("/home/ada/.htpasswds/passwd", PASSWD),
        ('"/home/ada/.htpasswds/passwd"', PASSWD),
        ("//home/ada//x/../.htpasswds/passwd", PASSWD),
        ("/home/ada/public_html/members/.htpasswd", f"{ROOT}/members/.htpasswd"),
    ],
)
def test_a_path_beneath_the_old_home_leads_to_what_the_archive_has(named: str, file: str) -> None:
    assert found(named, {file: f"ada:{APR1}\nbob:secret".encode()}) == FoundPasswords(
        "shop.example",
        "/members",
        named.strip('"'),
        file,
        1,
        [("bob", "its password is stored as plain text, or in a way that the web server does not know")],
    )


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ("/home/ada/.htpasswds/other", "is not in the archive"),
        ("/etc/apache2/.htpasswd", "outside of the account's home"),
        ("/home/adam/.htpasswds/passwd", "outside of the account's home"),
        ("/home/ada/../bob/.htpasswds/passwd", "outside of the account's home"),
        (".htpasswds/passwd", "not an absolute path"),
        ("../.htpasswds/passwd", "not an absolute path"),
        ("/home/ada", "outside of the account's home"),
    ],
)
def test_what_leads_elsewhere_is_not_brought_and_said(named: str, problem: str) -> None:
    everything = {path: f"ada:{APR1}".encode() for path in (PASSWD, "etc/apache2/.htpasswd", ".htpasswds/passwd")}

    one = found(named, everything)

    assert one.problem is not None
    assert problem in one.problem
    assert (one.file, one.logins) == (None, 0)


def test_an_archive_that_does_not_say_where_it_lay_brings_none() -> None:
    one = found("/home/ada/.htpasswds/passwd", {PASSWD: b""}, home=None)

    assert "does not say where its files were" in str(one.problem)


@pytest.mark.parametrize("content", [b"x" * (MOST_BYTES + 1), b"", b"ada:secret", b"\0\xff"])
def test_a_file_of_which_nothing_can_be_taken_over_is_said_and_known(content: bytes) -> None:
    one = found("/home/ada/.htpasswds/passwd", {PASSWD: content})

    assert "no login of /home/ada/.htpasswds/passwd can be imported" in str(one.problem)
    assert "secret" not in repr(one)
    # Nobody is to be served it, whatever is in it.
    assert one.file == PASSWD


def test_a_folder_is_a_path_of_the_site_in_which_it_lies() -> None:
    text = b"AuthType Basic\nAuthUserFile /home/ada/.htpasswd\nRequire valid-user"
    places = (ROOT, f"{ROOT}/addon/a", "x/homedir/mail", f"{ROOT}/b")
    texts = {f"{place}/.htaccess": text for place in places} | {f"{ROOT}/b/c/.htaccess": b"Options -Indexes"}

    assert [(each.site, each.path) for each in password_candidates(Survey(texts), account())] == [
        ("shop.example", "/"),
        ("blog.example", "/a"),
        ("shop.example", "/b"),
    ]


@pytest.mark.parametrize(
    ("link", "target", "leads"),
    [
        ("m", "a/members", True),
        ("b/m", "/home/ada/public_html/a/members/deep", True),
        ("m", "a", True),
        ("b/all", "..", True),
        ("a/members/again", "../members", True),
        ("m", "a/members/file.txt", False),
        ("m", "b", False),
        ("m", "a/membership", False),
        ("m", "/etc", False),
    ],
)
def test_a_link_that_leads_past_the_password_keeps_the_site_closed(link: str, target: str, leads: bool) -> None:
    text = b"AuthType Basic\nAuthUserFile /home/ada/.htpasswds/passwd\nRequire valid-user"
    folders = ("", "/a", "/a/members", "/a/members/deep", "/a/membership", "/b")
    survey = Survey({f"{ROOT}/a/members/.htaccess": text}, {f"{ROOT}{folder}": (1, 1) for folder in folders})

    [one] = password_candidates(survey, account(), [(f"{ROOT}/{link}", target)])

    assert one.problem == (f"the link public/{link} leads there without asking for the password" if leads else None)


def test_more_paths_than_a_site_may_have_are_named() -> None:
    text = b"AuthType Basic\nAuthUserFile /home/ada/.htpasswd\nRequire valid-user"
    read = account()

    assert len(password_candidates(Survey({f"{ROOT}/{number}/.htaccess": text for number in range(203)}), read)) == 200
    assert len(read.left) == 3


@given(st.text(max_size=60) | st.lists(st.sampled_from(["/", "..", "home", "ada", "etc", " ", '"'])).map("/".join))
def test_whatever_a_file_calls_it_nothing_is_looked_for_above_the_home(named: str) -> None:
    text = f"AuthType Basic\nAuthUserFile {named}\nRequire valid-user".encode(errors="replace")
    for one in password_candidates(Survey({f"{ROOT}/.htaccess": text}), account()):
        assert all(file.startswith("x/homedir/") and ".." not in file.split("/") for file in one.files)
        assert one.files or one.problem is not None


def test_what_was_found_is_kept_and_an_account_that_was_read_before_has_none() -> None:
    kept = account()
    kept.passwords = [found("/home/ada/.htpasswds/passwd", {PASSWD: f"ada:{APR1}\nx:y".encode()})]
    record = kept.record()

    assert account_of(record) == kept
    assert APR1 not in repr(record)
    del record["passwords"]
    assert account_of(record).passwords == []


def test_of_files_that_name_no_passwords_nothing_is_kept() -> None:
    assert names_no_password_file("a/.htaccess", b"Options -Indexes")
    assert not names_no_password_file("a/.htaccess", b"authUSERfile /x")
    assert not names_no_password_file("userdata/main", b"x")


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("AuthUserFile /home/ada/.htpasswds/x", "/home/ada/.htpasswds/x"),
        (' authuserfile "/home/ada/a b" \r', "/home/ada/a b"),
        ("AuthUserFile /home/ada/x/../y", "/home/ada/y"),
        ("AuthUserFile /home/ada/../bob/x", None),
        ("AuthUserFile /home/ada", None),
        ("AuthUserFile /home/adam/x", None),
        ("AuthUserFile /etc/apache2/.htpasswd", None),
        ("AuthUserFile .htpasswd", None),
        ("AuthUserFile /home/ada/www/members/.htpasswd", None),
        ("AuthUserFile", None),
        ("AuthGroupFile /home/ada/groups", None),
    ],
)
def test_files_beneath_the_home_of_another_host_are_fetched_that_do_not_come_anyhow(
    line: str, path: str | None
) -> None:
    said = f"Welcome!\nAuthUserFile /home/ada/banner\nsvc-home /home/ada/\n{line}\n{line}\nsvc-home /etc\n"

    assert named_passwords(said, ["/home/ada/www/"]) == ([] if path is None else [path])


@pytest.mark.parametrize("home", ["svc-home /", "svc-home ", "svc-home ..", ""])
def test_without_a_home_there_nothing_is_fetched_beside_the_folders(home: str) -> None:
    assert named_passwords(f"{home}\nAuthUserFile /etc/shadow\nAuthUserFile /home/ada/x", ["/srv"]) == []


def test_as_many_files_are_fetched_as_a_site_has() -> None:
    lines = "".join(f"AuthUserFile /home/ada/{number}\n" for number in range(30))

    assert len(named_passwords(f"svc-home /home/ada\n{lines}", ["/srv"])) == 20
