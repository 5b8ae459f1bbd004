"""Files of passwords, as Apache reads them: what of them is taken over, and what is named and stays behind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc_actors.panel.sites import protected_paths
from svc_actors.panel.sites.protected_paths import protected_path
from svc_webhost.apache.asking import PasswordAsked, password_asked
from svc_webhost.apache.htaccess import Lines, parse
from svc_webhost.apache.passwords import MOST_BYTES, MOST_LOGINS, NoPasswordsError, read_passwords
from svc_webhost.nginx import Login

APR1 = "$apr1$Xj5aSgxr$2k0qFJeItxwaNxnxVEX8Z/"
BCRYPT = "$2y$05$aaaaaaaaaaaaaaaaaaaaaOjOHCcGZ1ZydhnG2lX11qSmiRJbsbsA."
SHA256 = "$5$abc$qsg6EHbUzHQzF1POlD7zUwBINSELQxypPaeDcZe6vH0"
SHA512 = "$6$abc$IdWKNKTJEb8LxY7CGg8YBXlvtfZzFw7Mp/r6niK9YB2mdvgY..TKjv1T..8RadRt2qvUHYRLr/TsVArtr91iR1"
KNOWN = [
    *(APR1, "$1$abcdefgh$cHJi5PXp/ki/ktXzqlk6I1", BCRYPT, BCRYPT.replace("2y", "2a"), BCRYPT.replace("05", "04")),
    *(SHA256, SHA512, SHA512.replace("$6$", "$6$rounds=10000$"), "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", "abNANd1rDfiNc"),
]


@pytest.mark.parametrize("verifier", KNOWN)
def test_what_the_web_server_compares_with_is_taken_over_as_it_is(verifier: str) -> None:
    assert read_passwords(f"ada:{verifier}\n".encode()).verifiers == {"ada": verifier}


@pytest.mark.parametrize(
    ("verifier", "why"),
    [
        ("secret", "plain text"),
        ("{PLAIN}secret", "plain text"),
        ("{SSHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", "does not know"),
        ("", "plain text"),
        ("$apr1$" + "a" * 40, "does not know"),
        (f"{APR1} x", "does not know"),
        (BCRYPT.replace("$05$", "$31$"), "too long"),
        (BCRYPT.replace("$05$", "$06$"), "too long"),
        (BCRYPT.replace("$05$", "$10$"), "too long"),
        (SHA512.replace("$6$", "$6$rounds=10001$"), "too long"),
        (SHA512.replace("$6$", "$6$rounds=100000$"), "too long"),
        (SHA512.replace("$6$", "$6$rounds=999999999$"), "too long"),
        (SHA256.replace("$5$", "$5$rounds=100001$"), "too long"),
        ("$y$j9T$abcdefgh$IUWJt2doU4Kf6E/JP1UkAT3S5O3Q7SSA8SJirXIlEu9", "too long"),
    ],
)
def test_what_it_does_not_know_or_would_be_held_up_by_is_left_out_with_the_reason(verifier: str, why: str) -> None:
    read = read_passwords(f"ada:{verifier}\nbob:{APR1}".encode())

    assert read.verifiers == {"bob": APR1}
    assert [(who, why in reason) for who, reason in read.left] == [("ada", True)]


def test_lines_are_read_as_apache_reads_them() -> None:
    text = f"# of the board\r\n\n  ada:{APR1}:and more \r\n#bob:{APR1}\nada:{BCRYPT}\nno login\nwith blank:{APR1}\n:x\n"
    read = read_passwords(text.encode())

    assert read.verifiers == {"ada": APR1}
    assert [who for who, _ in read.left] == ["line 6", "line 7", "line 8"]


def test_no_user_of_a_list_is_brought_whom_the_file_does_not_have_and_no_other_is() -> None:
    read = read_passwords(f"ada:{APR1}\nbob:{BCRYPT}\neve:secret".encode())

    some = read.of(frozenset({"ada", "eve", "joe"}))

    assert some.verifiers == {"ada": APR1}
    assert [who for who, _ in some.left] == ["eve", "joe"]
    assert read.of(None).verifiers.keys() == {"ada", "bob"}
    with pytest.raises(NoPasswordsError, match="eve"):
        read.of(frozenset({"eve"}))


@pytest.mark.parametrize("content", [b"x" * (MOST_BYTES + 1), b"\n" * 1001])
def test_a_file_of_more_than_a_site_has_is_not_read(content: bytes) -> None:
    with pytest.raises(NoPasswordsError, match="more than"):
        read_passwords(content)


def test_as_many_logins_come_as_a_path_may_have_and_the_others_are_named() -> None:
    assert MOST_LOGINS == protected_paths.MOST_LOGINS
    text = "".join(f"user{number}:abNANd1rDfiNc\n" for number in range(MOST_LOGINS + 60))

    taken = read_passwords(text.encode()).of(None)

    protected_path("/", taken.verifiers)
    assert len(taken.verifiers) == MOST_LOGINS
    assert taken.left[0] == (f"user{MOST_LOGINS}", f"a path has at most {MOST_LOGINS} logins")
    assert (len(taken.left), taken.left[-1][0]) == (51, "10 more")


LINES = st.lists(
    st.sampled_from(["ada", "bob", "#", "", " ", "a b", "ä"]).flatmap(
        lambda login: (st.sampled_from([*KNOWN, "secret", "\0", "$"]) | st.text(max_size=80)).map(
            lambda verifier: f"{login}:{verifier}"
        )
    )
    | st.text(max_size=80),
    max_size=12,
)


@given(LINES.map("\n".join).map(lambda text: text.encode(errors="replace")) | st.binary(max_size=300))
def test_whatever_is_in_a_file_the_web_server_takes_what_is_brought_and_nothing_else_is_shown(content: bytes) -> None:
    read = read_passwords(content)

    for login, verifier in read.verifiers.items():
        Login(login=login, verifier=verifier)
        assert verifier not in repr(read)
        # The first line of a login is the one that counts.
        [first, *_] = [
            line for line in content.split(b"\n") if line.strip(b" \t\v\f\r").startswith(f"{login}:".encode())
        ]
        assert verifier.encode() in first
    for who, _ in read.left:
        assert Login.model_validate({"login": who, "verifier": KNOWN[0]}) if " " not in who else who.startswith("line ")


BASIC = "AuthType Basic\nAuthName x\nAuthUserFile /home/ada/.htpasswd\nRequire valid-user"


@pytest.mark.parametrize(
    ("text", "users"),
    [
        (BASIC, None),
        (BASIC.lower(), None),
        (BASIC.replace("valid-user", "user ada Bob"), {"ada", "Bob"}),
        (f"{BASIC.replace('valid-user', 'user ada')}\nRequire user bob", {"ada", "bob"}),
        (f"{BASIC}\nRequire user bob", None),
        (f"{BASIC}\nAuthBasicProvider file\nAuthGroupFile /dev/null", None),
        (f"<IfModule mod_auth_basic.c>\n{BASIC}\n</IfModule>", None),
    ],
)
def test_a_file_that_asks_for_a_password_says_whose(text: str, users: set[str] | None) -> None:
    directives = parse(text)

    asked = password_asked(directives[0].sections, Lines(directives))

    assert asked == PasswordAsked("/home/ada/.htpasswd", None if users is None else frozenset(users))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BASIC.replace("Basic", "Digest"), "AuthType digest"),
        (BASIC.replace("AuthType Basic\n", ""), "AuthType of another file"),
        (BASIC.replace("AuthUserFile /home/ada/.htpasswd\n", ""), "lacks an AuthUserFile"),
        (BASIC.replace("Require valid-user", ""), "lacks a Require"),
        (BASIC.replace("valid-user", "group board"), "group board"),
        (BASIC.replace("Require valid-user", "Require"), "Require"),
        (f"{BASIC}\nAuthGroupFile /home/ada/groups", "AuthGroupFile"),
        (f"{BASIC}\nAuthBasicProvider dbm", "AuthBasicProvider dbm"),
        (f"{BASIC}\nAuthBasicUseDigestAlgorithm MD5", "AuthBasicUseDigestAlgorithm"),
        (f"{BASIC}\nSatisfy any", "Satisfy any"),
        (f"{BASIC}\nAllow from all", "Allow from all"),
        (f"{BASIC}\nRequire ip 192.0.2.7", "192.0.2.7"),
        (f"<Files a>\n{BASIC}\n</Files>", "part of the folder"),
        (f"<Limit POST>\n{BASIC}\n</Limit>", "part of the folder"),
        (f"{BASIC}\n<IfModule a>\nAuthUserFile /b\n</IfModule>", "several sections"),
    ],
)
def test_what_a_protected_path_could_not_ask_for_is_said(text: str, why: str) -> None:
    directives = parse(text)

    with pytest.raises(NoPasswordsError, match=why):
        password_asked(directives[0].sections, Lines(directives))
