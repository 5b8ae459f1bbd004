"""Which service is talked to, as whom, and where that is kept."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from svc.cli import profiles
from svc.cli.failures import Exit, Failure
from svc.cli.profiles import Choice, Profile, ProfileFile, choose
from tests.cli.conftest import Terminal

HERE = Profile(url="https://here.test:8443", token="svcvm_here", trusted="PEM here")
THERE = Profile(url="https://there.test:8443", token="svcvm_there")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    profiles.save(environment, ProfileFile("here", {"here": HERE, "there": THERE}))
    return environment


def test_the_file_is_its_owners_alone_whatever_lay_there_before(environment: dict[str, str]) -> None:
    path = profiles.profile_path(environment)
    path.chmod(0o644)
    left_over = path.with_name(f"{path.name}.new")
    left_over.touch(0o666)
    profiles.save(environment, profiles.load(environment))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not left_over.exists()
    assert profiles.load(environment).profiles == {"here": HERE, "there": THERE}


def test_flag_then_environment_then_file(environment: dict[str, str]) -> None:
    assert choose(Choice(environment=environment)) == HERE
    assert choose(Choice(environment=environment | {"SVC_PROFILE": "there"})) == THERE
    assert choose(Choice(profile="here", environment=environment | {"SVC_PROFILE": "there"})) == HERE
    assert choose(Choice(environment=environment | {"SVC_TOKEN": "svcvm_env"})).token == "svcvm_env"
    given = Choice(token="svcvm_flag", environment=environment | {"SVC_TOKEN": "svcvm_env"})
    assert choose(given).token == "svcvm_flag"
    elsewhere = environment | {"SVC_URL": "https://env.test:8443"}
    assert choose(Choice(environment=elsewhere)).url == "https://env.test:8443"
    assert choose(Choice(url="https://flag.test:8443", environment=elsewhere)).url == "https://flag.test:8443"


def test_a_token_goes_to_its_own_service_only(environment: dict[str, str]) -> None:
    other = choose(Choice(url="https://other.test:8443", environment=environment))
    assert (other.token, other.trusted) == (None, None)
    assert choose(Choice(url="https://here.test:8443/", environment=environment)).token == HERE.token


@pytest.mark.parametrize("url", ["http://here.test", "https://", "ftp://x", "https://u:p@here.test", "https://h/x?y"])
def test_what_is_no_address_of_a_service_is_refused(url: str, environment: dict[str, str]) -> None:
    with pytest.raises(Failure) as raised:
        choose(Choice(url=url, environment=environment))
    assert raised.value.exit_code == Exit.INVALID


@pytest.mark.parametrize("content", ["- a\n- b", "profiles: {a: {url: x, colour: red}}", "a: [", "profiles: 3"])
def test_a_damaged_file_is_named_and_left_as_it_is(content: str, environment: dict[str, str]) -> None:
    path = profiles.profile_path(environment)
    path.write_text(content)
    with pytest.raises(Failure, match=str(path)):
        choose(Choice(environment=environment))
    assert path.read_text() == content


def test_tokens_are_not_shown_by_accident() -> None:
    assert "svcvm_here" not in repr(HERE) + repr(Choice(token="svcvm_here"))


async def test_profiles_are_listed_chosen_and_forgotten(terminal: Terminal) -> None:
    environment = terminal.variables()
    profiles.save(environment, ProfileFile("here", {"here": HERE, "there": THERE}))
    await terminal.ok("profile", "use", "there")
    listed = (await terminal.ok("profile", "list", "-o", "json")).json
    assert {row["name"]: row["current"] for row in listed} == {"here": False, "there": True}
    assert "svcvm_" not in (await terminal.ok("profile", "list", "-o", "yaml")).out
    await terminal.ok("profile", "remove", "there")
    assert list(profiles.load(environment).profiles) == ["here"]
    assert (await terminal.svc("profile", "use", "there")).code == Exit.NOT_FOUND


@pytest.mark.usefixtures("hurried")
async def test_a_file_that_others_may_read_is_pointed_out(terminal: Terminal) -> None:
    unreachable = Profile(url="https://127.0.0.1:1", token="svcvm_x")
    profiles.save(terminal.variables(), ProfileFile("x", {"x": unreachable}))
    profiles.profile_path(terminal.variables()).chmod(0o644)
    ended = await terminal.svc("me")
    assert "chmod 600" in ended.err
