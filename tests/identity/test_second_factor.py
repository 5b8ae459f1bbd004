"""Signing in with a code as well, as its owner and as whoever has their password sees it."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

import pytest
import trio

from svc_actors.store import Database
from tests.support.authenticator import Authenticator, code_given, password_given
from tests.support.harness import PASSWORD, Client
from tests.support.identity import MAIL, IdentityHarness, open_identity

ADA = "ada@example.org"


@pytest.fixture
async def world(database: Database) -> AsyncIterator[IdentityHarness]:
    async with open_identity(database, mail=MAIL) as opened:
        yield opened


@pytest.fixture
def phone(monkeypatch: pytest.MonkeyPatch) -> Authenticator:
    return Authenticator.with_clock(monkeypatch)


async def enrolled(world: IdentityHarness, phone: Authenticator) -> tuple[Client, list[str]]:
    """Ada's browser, and her recovery codes."""
    await world.person(ADA)
    browser = await world.signed_in(ADA)
    return browser, await phone.set_up(browser)


async def test_a_code_is_asked_for_after_the_password_and_opens_a_new_session(
    world: IdentityHarness, phone: Authenticator
) -> None:
    first, codes = await enrolled(world, phone)
    browser = world.browser()

    pending = await password_given(browser, ADA)
    between = (browser.cookie, (await browser.get("/me")).status_code)
    signed_in = await code_given(browser, pending, phone.code())

    assert len(set(codes)) == 10
    assert between == (None, 401)
    assert signed_in.status_code == 200
    assert signed_in.json()["user"]["email"] == ADA
    assert signed_in.json()["recovery_codes"] is None
    assert browser.cookie not in (None, first.cookie)
    assert (await browser.get("/me")).json()["email"] == ADA


async def test_setting_it_up_needs_the_password_and_counts_with_its_first_code(
    world: IdentityHarness, phone: Authenticator
) -> None:
    await world.person(ADA)
    browser = await world.signed_in(ADA)

    wrong_password = await browser.post("/me/second-factor", {"password": "a guess"})
    phone.secret = (await browser.post("/me/second-factor", {"password": PASSWORD})).json()["secret"]
    wrong_code = await browser.post("/me/second-factor/confirm", {"code": phone.wrong_code()})
    before = (await browser.get("/me/second-factor")).json()
    without = await world.browser().post("/auth/login", {"email": ADA, "password": PASSWORD})
    confirmed = await browser.post("/me/second-factor/confirm", {"code": phone.code()})
    after = (await browser.get("/me/second-factor")).json()
    again = await browser.post("/me/second-factor", {"password": PASSWORD})

    assert [answer.status_code for answer in (wrong_password, wrong_code, without)] == [403, 409, 200]
    assert (before["enabled"], after["enabled"], after["recovery_codes"]) == (False, True, 10)
    assert confirmed.status_code == 200
    assert again.json()["error"]["code"] == "conflict"


async def test_a_code_is_good_once(world: IdentityHarness, phone: Authenticator) -> None:
    await enrolled(world, phone)
    code = phone.code()
    browser, thief = world.browser(), world.browser("198.51.100.7")
    hers, theirs = await password_given(browser, ADA), await password_given(thief, ADA)

    first = await code_given(browser, hers, code)
    second = await code_given(thief, theirs, code)
    phone.pass_time()
    earlier = await code_given(thief, theirs, phone.code(-1))
    later = await code_given(thief, theirs, phone.code())

    assert [answer.status_code for answer in (first, second, earlier, later)] == [200, 401, 401, 200]


async def test_the_code_that_set_it_up_signs_nobody_in(world: IdentityHarness, phone: Authenticator) -> None:
    await enrolled(world, phone)
    browser = world.browser()

    answer = await code_given(browser, await password_given(browser, ADA), phone.code(-1))

    assert answer.status_code == 401


async def test_of_one_code_given_fifty_times_at_once_one_signs_in(world: IdentityHarness, phone: Authenticator) -> None:
    await enrolled(world, phone)
    pending = [await password_given(world.browser(), ADA) for _ in range(50)]

    statuses = await at_once(world, pending, phone.code())

    assert statuses.count(200) == 1
    assert set(statuses) <= {200, 401, 429}


async def test_of_one_recovery_code_given_fifty_times_at_once_one_signs_in(
    world: IdentityHarness, phone: Authenticator
) -> None:
    browser, codes = await enrolled(world, phone)
    pending = [await password_given(world.browser(), ADA) for _ in range(50)]

    statuses = await at_once(world, pending, codes[0])

    assert statuses.count(200) == 1
    assert (await browser.get("/me/second-factor")).json()["recovery_codes"] == 9


async def test_of_one_pending_sign_in_used_fifty_times_at_once_one_signs_in(
    world: IdentityHarness, phone: Authenticator
) -> None:
    _, codes = await enrolled(world, phone)
    pending = await password_given(world.browser(), ADA)
    statuses: list[int] = []

    async def give(number: int) -> None:
        code = codes[number % len(codes)]
        statuses.append((await code_given(world.browser(), pending, code)).status_code)

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(give, number)

    assert sorted(statuses) == [200] + [401] * 49


async def at_once(world: IdentityHarness, pending: list[str], code: str) -> list[int]:
    statuses: list[int] = []

    async def give(one: str) -> None:
        statuses.append((await code_given(world.browser(), one, code)).status_code)

    async with trio.open_nursery() as nursery:
        for one in pending:
            nursery.start_soon(give, one)
    return statuses


async def test_recovery_codes_are_taken_as_people_type_them(world: IdentityHarness, phone: Authenticator) -> None:
    _, codes = await enrolled(world, phone)
    browser = world.browser()

    answer = await code_given(browser, await password_given(browser, ADA), f" {codes[3].upper().replace('-', ' ')} ")

    assert answer.status_code == 200
    [mail] = [mail for mail in await world.mails() if "recovery code" in mail.text]
    assert "9 of them are left" in mail.text


async def test_a_pending_sign_in_ends_with_its_use_its_time_and_five_wrong_codes(
    world: IdentityHarness, phone: Authenticator
) -> None:
    await enrolled(world, phone)
    browser = world.browser()
    used = await password_given(browser, ADA)
    await code_given(browser, used, phone.code())
    phone.pass_time()
    expired = await password_given(browser, ADA)
    await world.database.execute("UPDATE pending_sign_ins SET expires_at = now() - interval '1 second'")
    guessed = await password_given(browser, ADA)
    wrong = [await code_given(browser, guessed, phone.wrong_code()) for _ in range(5)]

    after = [await code_given(browser, pending, phone.code()) for pending in (used, expired, guessed, "made up")]

    assert {answer.json()["error"]["message"] for answer in wrong} == {"This code is wrong, or was used before."}
    assert {answer.json()["error"]["message"] for answer in after} == {"This sign-in has ended."}
    assert {answer.status_code for answer in after} == {401}


async def test_guessing_codes_is_throttled_for_the_account_from_wherever_it_comes(
    world: IdentityHarness, phone: Authenticator
) -> None:
    await enrolled(world, phone)
    pending = [await password_given(world.browser(f"198.51.100.{number}"), ADA) for number in range(60)]

    answers = []
    for number in range(60):
        browser = world.browser(f"198.51.100.{number}")
        answers.append(await code_given(browser, pending[number], phone.wrong_code()))

    statuses = [answer.status_code for answer in answers]
    assert statuses.count(401) <= 15
    assert int(answers[-1].headers["Retry-After"]) >= 1
    # The right code is not looked at either while one has to wait; from where she is known Ada signs in.
    turned_away = await code_given(world.browser("198.51.100.3"), pending[3], phone.code())
    assert turned_away.status_code == 429
    home = world.browser()
    assert (await code_given(home, await password_given(home, ADA), phone.code())).status_code == 200


async def test_a_burst_of_guesses_is_throttled_as_well(world: IdentityHarness, phone: Authenticator) -> None:
    await enrolled(world, phone)
    stranger = world.browser("198.51.100.7")
    pending = [await password_given(stranger, ADA) for _ in range(40)]
    statuses: list[int] = []

    async def guess(one: str) -> None:
        browser = world.browser("198.51.100.7")
        statuses.append((await code_given(browser, one, phone.wrong_code())).status_code)

    async with trio.open_nursery() as nursery:
        for one in pending:
            nursery.start_soon(guess, one)

    assert statuses.count(401) <= 7
    assert statuses.count(401) + statuses.count(429) == 40


@pytest.mark.parametrize(
    ("away", "counted"), [(True, "code:account:%"), (False, "code:familiar:%")], ids=["anywhere", "a-shared-address"]
)
async def test_waits_for_codes_grow_to_an_hour_and_are_not_forgotten_meanwhile(
    world: IdentityHarness, phone: Authenticator, away: bool, counted: str
) -> None:
    await enrolled(world, phone)
    stranger = world.browser("198.51.100.7") if away else world.browser()
    for _ in range(24):
        pending = await password_given(stranger, ADA)
        assert (await code_given(stranger, pending, phone.wrong_code())).status_code == 401
        await world.database.execute("UPDATE sign_in_attempts SET blocked_until = now()")

    await code_given(stranger, await password_given(stranger, ADA), phone.wrong_code())

    row = await world.database.fetchone(
        """
        SELECT extract(epoch FROM blocked_until - now()) AS wait, extract(epoch FROM forget_at - blocked_until) AS rest
        FROM sign_in_attempts WHERE subject LIKE $1
        """,
        counted,
    )
    assert 3500 < row["wait"] <= 3600
    assert row["rest"] > 3000


@pytest.mark.parametrize("ending", ["suspension", "password", "sign-out"])
async def test_what_ends_sessions_ends_pending_sign_ins(
    world: IdentityHarness, phone: Authenticator, ending: str
) -> None:
    await enrolled(world, phone)
    ada = await world.database.fetchval("SELECT id FROM users WHERE email = $1", ADA)
    await world.person("root@example.org", "administrator")
    root = await world.signed_in("root@example.org")
    browser = world.browser()
    pending = await password_given(browser, ADA)

    body = {"suspension": {"reason": "unpaid"}, "password": {"password": "Another-Horse-42"}, "sign-out": {}}[ending]
    path = {"suspension": "suspend"}.get(ending, ending)
    assert (await root.post(f"/admin/users/{ada}/{path}", body)).is_success

    assert (await code_given(browser, pending, phone.code())).status_code == 401
    assert await world.database.fetchval("SELECT count(*) FROM pending_sign_ins") == 0


async def test_a_new_password_keeps_the_second_factor(world: IdentityHarness, phone: Authenticator) -> None:
    await enrolled(world, phone)
    ada = await world.database.fetchval("SELECT id FROM users WHERE email = $1", ADA)
    await world.person("root@example.org", "administrator")
    root = await world.signed_in("root@example.org")

    await root.post(f"/admin/users/{ada}/password", {"password": "Another-Horse-42"})

    browser = world.browser()
    pending = await password_given(browser, ADA, "Another-Horse-42")
    assert (await code_given(browser, pending, phone.code())).status_code == 200


async def test_a_token_works_without_a_code(world: IdentityHarness, phone: Authenticator) -> None:
    await enrolled(world, phone)
    ada = await world.database.fetchval("SELECT id FROM users WHERE email = $1", ADA)

    answer = await world.program(await world.token(ada)).get("/me")

    assert answer.json()["email"] == ADA


async def test_disabling_takes_password_and_code_and_is_mailed(world: IdentityHarness, phone: Authenticator) -> None:
    browser, _ = await enrolled(world, phone)

    async def disable(password: str, code: str) -> int:
        answer = await browser.post("/me/second-factor/disable", {"password": password, "code": code})
        return answer.status_code

    refused = [await disable("a guess", phone.code()), await disable(PASSWORD, phone.wrong_code())]
    done = await disable(PASSWORD, phone.code())

    assert (refused, done) == ([403, 403], 204)
    assert (await world.browser().post("/auth/login", {"email": ADA, "password": PASSWORD})).status_code == 200
    assert await world.database.fetchval("SELECT count(*) FROM recovery_codes") == 0
    assert [mail.recipient for mail in await world.mails() if "was disabled" in mail.text] == [ADA]


async def test_a_session_cannot_guess_the_code_that_disables(world: IdentityHarness, phone: Authenticator) -> None:
    browser, _ = await enrolled(world, phone)

    guess = {"password": PASSWORD, "code": phone.wrong_code()}
    statuses = [(await browser.post("/me/second-factor/disable", guess)).status_code for _ in range(40)]

    assert statuses.count(403) <= 7
    assert statuses[-1] == 429


async def test_a_session_cannot_guess_the_code_that_sets_it_up(world: IdentityHarness, phone: Authenticator) -> None:
    """Of one that its owner has started: the answer has the recovery codes."""
    await world.person(ADA)
    browser = await world.signed_in(ADA)
    phone.secret = (await browser.post("/me/second-factor", {"password": PASSWORD})).json()["secret"]

    guess = {"code": phone.wrong_code()}
    statuses = [(await browser.post("/me/second-factor/confirm", guess)).status_code for _ in range(40)]

    assert statuses.count(409) <= 7
    assert statuses[-1] == 429


async def test_new_recovery_codes_end_those_before(world: IdentityHarness, phone: Authenticator) -> None:
    browser, old = await enrolled(world, phone)

    renewed = await browser.post("/me/second-factor/recovery-codes", {"password": PASSWORD, "code": phone.code()})

    new = renewed.json()["recovery_codes"]
    other = world.browser()
    assert not set(new) & set(old)
    assert (await code_given(other, await password_given(other, ADA), old[0])).status_code == 401
    assert (await code_given(other, await password_given(other, ADA), new[0])).status_code == 200


async def test_an_administrator_disables_it_for_somebody_else_and_not_for_themselves(
    world: IdentityHarness, phone: Authenticator
) -> None:
    browser, _ = await enrolled(world, phone)
    ada = await world.database.fetchval("SELECT id FROM users WHERE email = $1", ADA)
    root_id = await world.person("root@example.org", "administrator")
    root = await world.signed_in("root@example.org")
    path = f"/admin/users/{ada}/second-factor/disable"

    shown = (await root.get(f"/admin/users/{ada}")).json()["second_factor"]
    by_herself = await browser.post(path, {"reason": "mine"})
    own = await root.post(f"/admin/users/{root_id}/second-factor/disable", {"reason": "mine"})
    done = await root.post(path, {"reason": "called back on the number we know"})
    again = await root.post(path, {"reason": "once more"})

    assert shown is True
    assert [each.status_code for each in (by_herself, own, done, again)] == [403, 409, 200, 409]
    assert done.json()["second_factor"] is False
    assert (await browser.get("/me")).status_code == 401
    [row] = [
        row
        for row in await world.audit()
        if row["operation"] == "person.disable_second_factor" and row["outcome"] == "ok"
    ]
    assert (row["target_name"], row["actor"]) == (ADA, "root@example.org")
    assert row["details"]["reason"] == "called back on the number we know"
    [mail] = [mail for mail in await world.mails() if "An administrator has disabled" in mail.text]
    assert mail.recipient == ADA
    assert "192.0.2.1" not in mail.text


async def test_a_support_session_neither_sets_one_up_nor_disables_one(
    world: IdentityHarness, phone: Authenticator
) -> None:
    ada = await world.person(ADA)
    await world.person("root@example.org", "administrator")
    root = await world.signed_in("root@example.org")
    assert (await root.post(f"/admin/users/{ada}/impersonate", {"reason": "to look"})).status_code == 200

    refused = [
        await root.post("/me/second-factor", {"password": PASSWORD}),
        await root.post("/me/second-factor/confirm", {"code": "123456"}),
        await root.post("/me/second-factor/disable", {"password": PASSWORD, "code": "123456"}),
        await root.post("/me/second-factor/recovery-codes", {"password": PASSWORD, "code": "123456"}),
    ]

    assert {answer.json()["error"]["message"] for answer in refused} == {"a support session can look, not act"}


async def test_required_administrators_set_one_up_before_they_have_a_session(
    world: IdentityHarness, phone: Authenticator
) -> None:
    await world.person("root@example.org", "administrator")
    await world.person("second@example.org", "administrator")
    await world.person(ADA)
    root, second = await world.signed_in("root@example.org"), await world.signed_in("second@example.org")

    too_early = await root.call("PATCH", "/settings", {"require_second_factor": True})
    await phone.set_up(root)
    required = await root.call("PATCH", "/settings", {"require_second_factor": True})

    assert too_early.json()["error"]["code"] == "conflict"
    assert required.json()["require_second_factor"] is True
    assert (await root.get("/me")).status_code == 200
    assert (await second.get("/me")).status_code == 401, "who has none sets one up when they sign in again"
    asked = (await second.post("/auth/login", {"email": "second@example.org", "password": PASSWORD})).json()
    other = Authenticator(asked["enrolment"]["secret"], phone.now)
    assert (await second.get("/me")).status_code == 401
    assert (await code_given(second, asked["pending"], other.wrong_code())).status_code == 401
    signed_in = await code_given(second, asked["pending"], other.code())
    assert len(signed_in.json()["recovery_codes"]) == 10
    assert (await second.get("/me")).status_code == 200
    assert (await second.get("/me/second-factor")).json()["required"] is True
    other.pass_time()
    phone.now = other.now
    kept = await second.post("/me/second-factor/disable", {"password": PASSWORD, "code": other.code()})
    assert kept.json()["error"]["code"] == "conflict"
    assert (await world.browser().post("/auth/login", {"email": ADA, "password": PASSWORD})).status_code == 200


async def test_who_becomes_an_administrator_signs_in_again_with_a_code(
    world: IdentityHarness, phone: Authenticator
) -> None:
    ada = await world.person(ADA)
    await world.person("root@example.org", "administrator")
    browser, root = await world.signed_in(ADA), await world.signed_in("root@example.org")
    await phone.set_up(root)
    await root.call("PATCH", "/settings", {"require_second_factor": True})

    await root.call("PATCH", f"/users/{ada}", {"role": "administrator"})

    assert (await browser.get("/me")).status_code == 401
    assert (await browser.post("/auth/login", {"email": ADA, "password": PASSWORD})).status_code == 202


async def test_a_dump_of_the_database_holds_nothing_that_signs_in(world: IdentityHarness, phone: Authenticator) -> None:
    _, codes = await enrolled(world, phone)
    pending = await password_given(world.browser(), ADA)

    dump = ""
    for table in await world.database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
        rows = await world.database.fetch(f"SELECT t::text AS row FROM {table['tablename']} AS t")
        dump += "\n".join(row["row"] for row in rows)

    assert ADA in dump
    for secret in (phone.secret, pending, *codes, *(code.replace("-", "") for code in codes)):
        assert secret not in dump
        assert secret.encode().hex() not in dump
    assert base64.b32decode(phone.secret).hex() not in dump


async def test_a_wrong_password_is_told_the_same_of_whoever_has_a_second_factor(
    world: IdentityHarness, phone: Authenticator
) -> None:
    await enrolled(world, phone)
    await world.person("eve@example.org")

    with_one, without = [
        await world.browser().post("/auth/login", {"email": email, "password": "a guess"})
        for email in (ADA, "eve@example.org")
    ]

    assert (with_one.status_code, without.status_code) == (401, 401)
    assert with_one.json()["error"]["message"] == without.json()["error"]["message"]


async def test_the_audit_tells_of_the_password_and_of_the_code(world: IdentityHarness, phone: Authenticator) -> None:
    await enrolled(world, phone)
    browser = world.browser()

    await code_given(browser, await password_given(browser, ADA), phone.code())

    told = [(row["operation"], row["actor"], row["outcome"]) for row in await world.audit()][-2:]
    assert told == [("session.login", ADA, "ok"), ("session.code", ADA, "ok")]
    assert phone.code() not in str(await world.audit())
