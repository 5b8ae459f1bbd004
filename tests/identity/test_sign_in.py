"""Setup, sign-in and sign-out, as a person and an attacker see them."""

from __future__ import annotations

import trio

from svc.controller.setup import ensure_setup_token
from svc.identity.passwords import Passwords
from svc_actors.store import Database
from tests.support.harness import PASSWORD, said
from tests.support.identity import ORIGIN, IdentityHarness, open_identity

SETUP = {"email": "Root@Example.org", "name": "Root", "password": PASSWORD}


async def test_setup_makes_the_first_administrator_and_signs_them_in(world: IdentityHarness) -> None:
    token = await ensure_setup_token(world.database)
    browser = world.browser()
    assert (await browser.get("/setup/status")).json()["required"] is True

    answer = await browser.post("/setup", {"token": token, **SETUP})

    assert answer.status_code == 200, answer.text
    assert answer.json()["user"]["role"] == "administrator"
    me = (await browser.get("/me")).json()
    assert (me["email"], me["impersonation"]) == ("root@example.org", None)
    assert (await browser.get("/setup/status")).json()["required"] is False
    assert await ensure_setup_token(world.database) is None


async def test_setup_is_refused_with_another_token_and_a_second_time(world: IdentityHarness) -> None:
    token = await ensure_setup_token(world.database)
    browser = world.browser()
    wrong = await browser.post("/setup", {"token": "svcsetup_wrong", **SETUP})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (403, "forbidden")

    assert (await browser.post("/setup", {"token": token, **SETUP})).status_code == 200
    again = await world.browser().post("/setup", {"token": token, **SETUP, "email": "second@example.org"})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "conflict")
    assert await world.database.fetchval("SELECT count(*) FROM users") == 1


async def test_of_setups_at_once_one_succeeds(world: IdentityHarness) -> None:
    token = await ensure_setup_token(world.database)
    statuses: list[int] = []

    async def attempt(number: int) -> None:
        body = {"token": token, **SETUP, "email": f"root{number}@example.org"}
        statuses.append((await world.browser().post("/setup", body)).status_code)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(attempt, number)
    assert sorted(statuses) == [200] + [409] * 9
    assert await world.database.fetchval("SELECT count(*) FROM users") == 1


async def test_a_new_setup_token_ends_the_earlier_one(world: IdentityHarness) -> None:
    earlier = await ensure_setup_token(world.database)
    later = await ensure_setup_token(world.database)
    assert (await world.browser().post("/setup", {"token": earlier, **SETUP})).status_code == 403
    assert (await world.browser().post("/setup", {"token": later, **SETUP})).status_code == 200


async def test_the_cookie_is_secure_http_only_same_site_and_new_at_each_sign_in(world: IdentityHarness) -> None:
    await world.person("ada@example.org")
    browser = world.browser()
    cookies = set()
    for _ in range(2):
        answer = await browser.post("/auth/login", {"email": "ADA@example.org", "password": PASSWORD})
        flags = answer.headers.get_list("Set-Cookie")[0].split("; ")
        assert flags[0].startswith("svcvm_session=")
        assert {"Secure", "HttpOnly", "SameSite=Strict", "Path=/"} <= set(flags)
        assert not any(flag.startswith("Domain") for flag in flags)
        cookies.add(flags[0])
    assert len(cookies) == 2
    assert await world.database.fetchval("SELECT count(*) FROM sessions") == 1, "the earlier session has ended"


async def test_signing_out_ends_the_session_for_whoever_kept_the_cookie(world: IdentityHarness) -> None:
    await world.person("ada@example.org")
    browser = await world.signed_in("ada@example.org")
    kept = browser.cookie
    answer = await browser.post("/auth/logout")
    assert answer.status_code == 204
    assert "svcvm_session=;" in answer.headers["Set-Cookie"]
    thief = world.browser()
    assert (await thief.call("GET", "/me", headers={"Cookie": f"svcvm_session={kept}"})).status_code == 401


async def test_unknown_people_wrong_passwords_and_people_without_one_look_alike(world: IdentityHarness) -> None:
    await world.person("ada@example.org")
    await world.database.execute("INSERT INTO users (email, name, role) VALUES ('new@example.org', 'New', 'customer')")
    answers = []
    for email in ("ada@example.org", "nobody@example.org", "new@example.org", ""):
        before = world.services.passwords.hashed
        answer = await world.browser().post("/auth/login", {"email": email, "password": "wrong"})
        cost = world.services.passwords.hashed - before
        answers.append((answer.status_code, said(answer), cost))
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][0] == 401
    assert answers[0][2] == 1


async def test_a_suspended_person_is_told_why_but_only_with_the_right_password(world: IdentityHarness) -> None:
    await world.person("ada@example.org")
    await world.database.execute(
        "UPDATE users SET suspended_at = now(), suspension_reason = 'unpaid invoice' WHERE email = 'ada@example.org'"
    )
    wrong = await world.browser().post("/auth/login", {"email": "ada@example.org", "password": "wrong"})
    right = await world.browser().post("/auth/login", {"email": "ada@example.org", "password": PASSWORD})
    assert (wrong.status_code, "unpaid" in wrong.text) == (401, False)
    assert (right.status_code, "unpaid invoice" in right.text) == (403, True)


async def test_guessing_is_throttled_and_the_owner_still_gets_in(world: IdentityHarness) -> None:
    await world.person("ada@example.org")
    guesser = world.browser("198.51.100.7")
    statuses = []
    for number in range(1000):
        answer = await guesser.post("/auth/login", {"email": "ada@example.org", "password": f"guess {number}"})
        statuses.append(answer.status_code)
    assert 429 in statuses
    assert statuses.count(401) < 30
    assert answer.json()["error"]["code"] == "rate_limited"
    assert 1 <= int(answer.headers["Retry-After"]) <= 300
    # The right password from there is not even looked at; the owner elsewhere signs in.
    before = world.services.passwords.hashed
    turned_away = await guesser.post("/auth/login", {"email": "ada@example.org", "password": PASSWORD})
    assert (turned_away.status_code, world.services.passwords.hashed) == (429, before)
    await world.signed_in("ada@example.org", address="203.0.113.9")


async def test_a_parallel_burst_of_guesses_is_throttled_as_well(world: IdentityHarness) -> None:
    await world.person("ada@example.org")
    statuses: list[int] = []

    async def guess(number: int) -> None:
        browser = world.browser("198.51.100.7")
        answer = await browser.post("/auth/login", {"email": "ada@example.org", "password": f"guess {number}"})
        statuses.append(answer.status_code)

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(guess, number)
    assert statuses.count(401) <= 10
    assert statuses.count(429) >= 90


async def test_an_account_attacked_from_many_addresses_opens_to_its_owner_within_half_a_minute(
    world: IdentityHarness,
) -> None:
    await world.person("ada@example.org")
    for number in range(200):
        browser = world.browser(f"198.51.{number}.7")
        await browser.post("/auth/login", {"email": "ada@example.org", "password": "guess"})
    longest = await world.database.fetchval(
        "SELECT max(extract(epoch FROM blocked_until - now()))::float8 FROM sign_in_attempts"
        " WHERE subject LIKE 'account:%'"
    )
    assert 0 < longest <= 30
    await world.database.execute("UPDATE sign_in_attempts SET blocked_until = now()")
    await world.signed_in("ada@example.org")


async def test_strangers_lock_nobody_out_of_a_browser_or_an_address_that_has_signed_in_before(
    world: IdentityHarness,
) -> None:
    await world.person("ada@example.org")
    hers = await world.signed_in("ada@example.org", address="203.0.113.9")
    for number in range(60):
        stranger = world.browser(f"198.51.{number}.7")
        await stranger.post("/auth/login", {"email": "ada@example.org", "password": "guess"})
    right = {"email": "ada@example.org", "password": PASSWORD}
    assert (await world.browser("198.51.100.1").post("/auth/login", right)).status_code == 429

    from_her_address = await world.browser("203.0.113.9").post("/auth/login", right)
    elsewhere = world.browser("192.0.2.77")
    elsewhere.http.cookies = hers.http.cookies
    with_her_browser = await elsewhere.post("/auth/login", right)

    assert from_her_address.status_code == 200
    assert with_her_browser.status_code == 200


async def test_failures_on_made_up_accounts_keep_out_nobody_who_has_signed_in_from_there(
    world: IdentityHarness,
) -> None:
    await world.person("ada@example.org")
    await world.signed_in("ada@example.org", address="203.0.113.9")
    neighbour = world.browser("203.0.113.9")
    for number in range(60):
        await neighbour.post("/auth/login", {"email": f"nobody{number}@example.org", "password": "x"})
    assert (await neighbour.post("/auth/login", {"email": "new@example.org", "password": "x"})).status_code == 429

    await world.signed_in("ada@example.org", address="203.0.113.9")


async def test_who_is_familiar_may_not_guess_for_ever_either(world: IdentityHarness) -> None:
    await world.person("ada@example.org")
    familiar = await world.signed_in("ada@example.org")
    statuses = []

    for number in range(50):
        answer = await familiar.post("/auth/login", {"email": "ada@example.org", "password": f"guess {number}"})
        statuses.append(answer.status_code)

    assert statuses.count(401) <= 7
    assert statuses.count(429) >= 43


async def test_the_addresses_of_one_ipv6_subscriber_are_one(world: IdentityHarness) -> None:
    await world.person("ada@example.org")
    statuses = []

    for number in range(50):
        guesser = world.browser(f"2001:db8:1:2::{number:x}")
        answer = await guesser.post("/auth/login", {"email": "ada@example.org", "password": "guess"})
        statuses.append(answer.status_code)

    assert statuses.count(401) <= 7


async def test_a_browser_is_known_again_by_a_cookie_that_opens_nothing(world: IdentityHarness) -> None:
    await world.person("ada@example.org")
    browser = world.browser()
    answer = await browser.post("/auth/login", {"email": "ada@example.org", "password": PASSWORD})
    [known] = [it for it in answer.headers.get_list("Set-Cookie") if it.startswith("svcvm_session_browser=")]
    assert {"Secure", "HttpOnly", "SameSite=Strict", "Path=/"} <= set(known.split("; "))
    value = known.partition("=")[2].partition(";")[0]

    thief = world.browser()
    opened = await thief.call("GET", "/me", headers={"Cookie": f"svcvm_session={value}; svcvm_session_browser={value}"})

    assert opened.status_code == 401
    dump = str(await world.database.fetch("SELECT * FROM familiar_sign_ins"))
    assert value not in dump
    again = await browser.post("/auth/login", {"email": "ada@example.org", "password": PASSWORD})
    assert f"svcvm_session_browser={value};" in str(again.headers.get_list("Set-Cookie"))


async def test_a_session_ends_after_twelve_idle_hours_and_after_seven_days_in_any_case(world: IdentityHarness) -> None:
    await world.person("ada@example.org")
    browser = await world.signed_in("ada@example.org")
    await world.database.execute("UPDATE sessions SET seen_at = now() - interval '11 hours 59 minutes'")
    assert (await browser.get("/me")).status_code == 200
    await world.database.execute("UPDATE sessions SET seen_at = now() - interval '12 hours 1 minute'")
    assert (await browser.get("/me")).status_code == 401

    browser = await world.signed_in("ada@example.org")
    await world.database.execute("UPDATE sessions SET expires_at = expires_at - interval '7 days'")
    assert (await browser.get("/me")).status_code == 401


async def test_the_database_holds_nothing_that_opens_the_door(database: Database) -> None:
    async with open_identity(database, passwords=Passwords()) as world:
        setup = await ensure_setup_token(database)
        await world.person("root@example.org", "administrator")
        browser = await world.signed_in("root@example.org")
        token = (await browser.post("/tokens", {"name": "t", "scopes": ["read"]})).json()["token"]
        dump = ""
        for table in await database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
            dump += str(await database.fetch(f'SELECT t::text AS row FROM "{table["tablename"]}" AS t'))
        assert "root@example.org" in dump
        for secret in (browser.cookie, token, token.removeprefix("svcvm_"), setup, PASSWORD):
            assert secret
            assert secret not in dump


async def test_people_sign_in_in_parallel_while_others_read(database: Database) -> None:
    async with open_identity(database, passwords=Passwords()) as world:
        await world.person("ada@example.org")
        reader = await world.signed_in("ada@example.org")
        signing_in, read_meanwhile = 40, 0
        async with trio.open_nursery() as nursery:

            async def sign_in() -> None:
                nonlocal signing_in
                await world.signed_in("ada@example.org")
                signing_in -= 1

            for _ in range(signing_in):
                nursery.start_soon(sign_in)
            while signing_in:
                assert (await reader.get("/me")).status_code == 200
                read_meanwhile += 1
        assert read_meanwhile > 10


async def test_a_foreign_null_or_missing_origin_or_a_missing_header_changes_nothing(world: IdentityHarness) -> None:
    await world.person("ada@example.org")
    browser = await world.signed_in("ada@example.org")
    cookie = {"Cookie": f"svcvm_session={browser.cookie}"}
    bare = world.browser()
    bare.headers = {}
    refused: list[dict[str, str]] = [
        {"X-Service-Request": "1"},
        {"X-Service-Request": "1", "Origin": "null"},
        {"X-Service-Request": "1", "Origin": "https://evil.test"},
        {"X-Service-Request": "1", "Origin": ORIGIN + ".evil.test"},
        {"X-Service-Request": "1", "Origin": ORIGIN.replace("https", "http")},
        {"X-Service-Request": "0", "Origin": ORIGIN},
        {"Origin": ORIGIN},
        {},
    ]
    for headers in refused:
        answer = await bare.call("POST", "/auth/logout", {}, headers={**headers, **cookie})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), headers
    # Login itself cannot be forged by another site either.
    forged = await bare.post(
        "/auth/login", {"email": "ada@example.org", "password": PASSWORD}, Origin="https://evil.test"
    )
    assert forged.status_code == 403
    assert (await browser.get("/me")).status_code == 200


async def test_an_origin_is_not_made_the_services_own_by_the_host_that_was_asked_for(world: IdentityHarness) -> None:
    await world.person("ada@example.org")
    browser = await world.signed_in("ada@example.org")

    answer = await browser.post("/auth/logout", Host="evil.test", Origin="https://evil.test")

    assert answer.status_code == 403
    assert (await browser.get("/me")).status_code == 200


async def test_a_sign_in_is_read_up_to_16_kib_and_no_further(world: IdentityHarness) -> None:
    await world.person("ada@example.org")
    browser = world.browser()
    longest = {"email": "ada@example.org", "password": "\u20ac" * 1024}
    too_long = {"email": "ada@example.org", "password": "x" * 20_000}

    assert (await browser.post("/auth/login", longest)).status_code == 401
    refused = await browser.post("/auth/login", too_long)

    assert refused.status_code == 400
    assert "16384 bytes" in refused.json()["error"]["message"]


async def test_a_bad_bearer_token_is_not_made_good_by_a_cookie(world: IdentityHarness) -> None:
    await world.person("ada@example.org")
    browser = await world.signed_in("ada@example.org")
    for authorization in ("Bearer svcvm_wrong", "Bearer", "Basic YTpi", "Bearer " + "x" * 2000):
        answer = await browser.call("GET", "/me", headers={"Authorization": authorization})
        assert answer.status_code == 401, authorization
