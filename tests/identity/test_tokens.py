"""API tokens: what each may do, for how long, and who sees and revokes it."""

from __future__ import annotations

import pytest
import trio

from svc.controller.machines import ssh_keys
from svc.identity import tokens
from tests.support.identity import SSH_KEY, IdentityHarness


async def test_a_token_is_shown_once_and_does_what_its_scopes_say(world: IdentityHarness) -> None:
    await world.person("ada@example.org")
    browser = await world.signed_in("ada@example.org")
    made = (await browser.post("/tokens", {"name": "ci", "scopes": ["read"], "days": 0})).json()
    assert made["token"].startswith("svcvm_")
    assert made["expires_at"] is None
    [listed] = (await browser.get("/tokens")).json()["items"]
    assert (listed["id"], listed["last_four"], listed["last_used_at"]) == (made["id"], made["token"][-4:], None)
    assert "token" not in listed

    program = world.program(made["token"])
    assert (await program.get("/me")).json()["scopes"] == ["read"]
    assert (await program.post("/ssh-keys", {"name": "k", "public_key": SSH_KEY})).status_code == 403
    assert (await browser.get("/tokens")).json()["items"][0]["last_used_at"] is not None

    assert (await browser.call("DELETE", f"/tokens/{made['id']}")).status_code == 204
    assert (await program.get("/me")).status_code == 401


async def test_an_expired_token_is_refused(world: IdentityHarness) -> None:
    await world.person("ada@example.org")
    browser = await world.signed_in("ada@example.org")
    made = (await browser.post("/tokens", {"name": "ci", "scopes": ["read"], "days": 1})).json()
    assert (await world.program(made["token"]).get("/me")).status_code == 200
    await world.database.execute("UPDATE api_tokens SET expires_at = now()")
    assert (await world.program(made["token"]).get("/me")).status_code == 401


async def test_a_token_makes_no_token_that_may_more_or_lives_longer(world: IdentityHarness) -> None:
    user = await world.person("ada@example.org")
    writer = world.program(await world.token(user, ["write", "provision"]))
    assert (await writer.post("/tokens", {"name": "t", "scopes": ["read"]})).status_code == 403
    mighty = await world.token(user, ["admin"])
    await world.database.execute("UPDATE api_tokens SET expires_at = now() + interval '1 hour'")
    made = (await world.program(mighty).post("/tokens", {"name": "t", "scopes": ["admin"], "days": 0})).json()
    parent = await world.database.fetchval("SELECT expires_at FROM api_tokens WHERE last_four = $1", mighty[-4:])
    assert made["expires_at"] == parent.isoformat().replace("+00:00", "Z")


async def test_a_customer_has_so_many_tokens_and_keys_and_an_administrator_any_number(
    world: IdentityHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "MOST_TOKENS", 3)
    monkeypatch.setattr(ssh_keys, "MOST_KEYS", 0)
    ada = world.program(await world.token(await world.person("ada@example.org"), ["admin"]))
    root = world.program(await world.token(await world.person("root@example.org", "administrator"), ["admin"]))
    answers = list[int]()

    async def order() -> None:
        answers.append((await ada.post("/tokens", {"name": "t", "scopes": ["read"]})).status_code)

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(order)
    assert sorted(answers) == [201, 201, 409, 409, 409, 409]
    refused = (await ada.post("/tokens", {"name": "t", "scopes": ["read"]})).json()["error"]
    assert (refused["code"], refused["details"]["limit"]) == ("capacity", 3)
    assert (await ada.post("/ssh-keys", {"name": "k", "public_key": SSH_KEY})).json()["error"]["code"] == "capacity"
    for _ in range(4):
        assert (await root.post("/tokens", {"name": "t", "scopes": ["read"]})).status_code == 201
    assert (await root.post("/ssh-keys", {"name": "k", "public_key": SSH_KEY})).status_code == 201
    # Those that have expired count no more.
    await world.database.execute("UPDATE api_tokens SET expires_at = now() WHERE name = 't'")
    assert (await ada.post("/tokens", {"name": "t", "scopes": ["read"]})).status_code == 201


async def test_a_token_that_a_token_made_ends_when_that_one_is_revoked(world: IdentityHarness) -> None:
    owner = await world.person("root@example.org", "administrator")
    parent = await world.token(owner, ["admin"])
    child = (await world.program(parent).post("/tokens", {"name": "child", "scopes": ["admin"]})).json()
    grandchild = (await world.program(child["token"]).post("/tokens", {"name": "third", "scopes": ["read"]})).json()
    assert (await world.program(grandchild["token"]).get("/me")).status_code == 200
    browser = await world.signed_in("root@example.org")
    [leaked] = [it for it in (await browser.get("/tokens")).json()["items"] if it["last_four"] == parent[-4:]]

    assert (await browser.call("DELETE", f"/tokens/{leaked['id']}")).status_code == 204

    for token in (parent, child["token"], grandchild["token"]):
        assert (await world.program(token).get("/me")).status_code == 401


async def test_a_customers_admin_token_is_still_a_customers(world: IdentityHarness) -> None:
    program = world.program(await world.token(await world.person("ada@example.org"), ["admin"]))
    for operation in world.registry:
        if operation.access.value in ("administrator", "staff"):
            path = operation.route.path.replace("{id}", "x").replace("{user_id}", "x")
            answer = await program.call(operation.route.method.value, path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), operation.name


async def test_a_read_token_changes_nothing_anywhere(world: IdentityHarness) -> None:
    program = world.program(await world.token(await world.person("root@example.org", "administrator"), ["read"]))
    for operation in world.registry:
        if operation.mutates and operation.access.value != "public":
            path = operation.route.path.replace("{id}", "x").replace("{user_id}", "x")
            answer = await program.call(operation.route.method.value, path, {})
            assert (answer.status_code, "scope" in answer.text) == (403, True), operation.name


async def test_a_token_without_scopes_may_whatever_its_owner_may(world: IdentityHarness) -> None:
    await world.person("root@example.com", "administrator")
    browser = await world.signed_in("root@example.com")

    made = (await browser.post("/tokens", {"name": "everything"})).json()

    program = world.program(made["token"])
    assert made["scopes"] is None
    assert (await program.get("/me")).json()["scopes"] == (await browser.get("/me")).json()["scopes"]
    assert (await program.post("/users", {"email": "new@example.com", "name": "New"})).status_code == 201
    assert (await program.post("/tokens", {"name": "child"})).json()["scopes"] is None
    assert (await browser.post("/tokens", {"name": "none", "scopes": []})).status_code == 400


async def test_tokens_are_everybodys_own(world: IdentityHarness) -> None:
    await world.person("ada@example.org")
    await world.person("eve@example.org")
    ada, eve = await world.signed_in("ada@example.org"), await world.signed_in("eve@example.org")
    made = (await ada.post("/tokens", {"name": "ci", "scopes": ["read"]})).json()
    assert (await eve.get("/tokens")).json()["total"] == 0
    assert (await eve.call("DELETE", f"/tokens/{made['id']}")).status_code == 404
    assert (await world.program(made["token"]).get("/me")).status_code == 200


async def test_an_administrator_lists_and_revokes_another_persons_tokens(world: IdentityHarness) -> None:
    root = await world.administrator()
    ada = await world.person("ada@example.org")
    program = world.program(await world.token(ada))
    [theirs] = (await root.get(f"/tokens?user={ada}")).json()["items"]

    assert theirs["user_id"] == str(ada)
    assert (await root.get("/tokens")).json()["total"] == 0
    assert (await root.call("DELETE", f"/tokens/{theirs['id']}")).status_code == 204

    assert (await program.get("/me")).status_code == 401
    row = (await world.audit())[-1]
    assert (row["operation"], row["actor"], row["target_id"]) == ("token.delete", "root@example.org", theirs["id"])


async def test_nobody_else_names_another_person_to_see_tokens(world: IdentityHarness) -> None:
    await world.person("staff@example.org", "staff")
    ada, eve = await world.person("ada@example.org"), await world.person("eve@example.org")
    for email in ("staff@example.org", "eve@example.org"):
        browser = await world.signed_in(email)

        assert (await browser.get(f"/tokens?user={ada}")).status_code == 403

    assert (await browser.get(f"/tokens?user={eve}")).status_code == 200
