"""Members of a customer's account: invited, accepted, at work in it, and gone."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from svc_actors.mail.queue import ClaimedMail
from svc_actors.panel.accounts.members import INVITATIONS_TO_ONE
from svc_actors.store import Database
from tests.support.harness import PASSWORD, Client
from tests.support.identity import MAIL
from tests.support.panel import PanelHarness, open_panel

ADA, BOB = "ada@example.com", "bob@example.com"


@pytest.fixture
async def panel(panel_database: Database, tmp_path: Path) -> AsyncIterator[PanelHarness]:
    async with open_panel(panel_database, tmp_path, mail=MAIL, loops=["jobs", "web server"]) as opened:
        yield opened


async def site(by: Client, domain: str, **more: Any) -> dict[str, Any]:
    answer = await by.post("/sites", {"domain": domain, "type": "static", **more})
    assert answer.status_code == 201, answer.text
    return cast(dict[str, Any], answer.json())


async def invited(by: Client, email: str, role: str, **more: Any) -> dict[str, Any]:
    answer = await by.post("/members", {"email": email, "role": role, **more})
    assert answer.status_code == 201, answer.text
    return cast(dict[str, Any], answer.json())


async def joined(panel: PanelHarness, by: Client, email: str, role: str, **more: Any) -> Client:
    """A member who has accepted: somebody of their own, who signs in by a token."""
    person = await panel.person(email, "member")
    member = await invited(by, email, role, **more)
    client = panel.program(await panel.token(person))
    assert (await client.post(f"/members/{member['id']}/accept")).status_code == 200
    return client


async def domains(client: Client) -> list[str]:
    return [each["domain"] for each in (await client.get("/sites")).json()["items"]]


async def mails(panel: PanelHarness) -> list[tuple[str, str]]:
    """To whom, and what they read."""
    rows = await panel.database.fetch("SELECT id, recipient, content FROM mails ORDER BY created_at")
    texts = [panel.services.outbox.content(ClaimedMail(row["id"], row["recipient"], row["content"])) for row in rows]
    return [
        (row["recipient"], str(message_from_bytes(text, policy=policy.default).get_content()))
        for row, text in zip(rows, texts, strict=True)
    ]


async def test_somebody_new_chooses_a_password_accepts_and_works_in_the_account(panel: PanelHarness) -> None:
    ada = await panel.customer(ADA)
    shop = await site(ada, "shop.example")

    member = await invited(ada, BOB, "editor")

    assert (member["status"], member["name"], member["site_id"]) == ("invited", None, None)
    [(recipient, text)] = await mails(panel)
    assert recipient == BOB
    assert ADA in text
    assert "editor" in text
    token = re.search(r"set-password\?token=(\S+)", text)
    assert token is not None
    browser = panel.browser()
    assert (await browser.post("/auth/set-password", {"token": token[1], "password": PASSWORD})).status_code == 200
    assert (await browser.post("/auth/login", {"email": BOB, "password": PASSWORD})).status_code == 200
    assert (await browser.get("/me")).json()["role"] == "member"
    assert await domains(browser) == []
    [offered] = (await browser.get("/memberships")).json()["items"]
    assert (offered["account_email"], offered["role"], offered["status"]) == (ADA, "editor", "invited")
    assert (await browser.post(f"/members/{offered['id']}/accept")).json()["status"] == "active"
    assert await domains(browser) == ["shop.example"]
    assert (await browser.get(f"/sites/{shop['id']}/files")).status_code not in (401, 403, 404)
    [listed] = (await ada.get("/members")).json()["items"]
    assert (listed["status"], listed["name"]) == ("active", "bob")


async def test_a_customer_is_a_member_beside_having_an_account(panel: PanelHarness) -> None:
    ada, bob = await panel.customer(ADA), await panel.customer(BOB)
    await site(ada, "shop.example")
    await site(ada, "blog.example")
    own = await site(bob, "bob.example")
    shop = (await ada.get("/sites?q=shop")).json()["items"][0]

    member = await invited(ada, BOB, "viewer", site_id=shop["id"])
    before = await domains(bob)
    await bob.post(f"/members/{member['id']}/accept")

    assert before == ["bob.example"]
    assert await domains(bob) == ["bob.example", "shop.example"]
    assert (await bob.patch(f"/sites/{own['id']}", {"force_https": True})).status_code == 200
    refused = await bob.patch(f"/sites/{shop['id']}", {"force_https": True})
    assert refused.status_code == 403
    assert refused.json()["error"]["hint"].startswith("It takes the role manager")
    assert "set-password" not in (await mails(panel))[0][1]


async def test_an_invitation_does_not_tell_who_is_known_here(panel: PanelHarness) -> None:
    ada = await panel.customer(ADA)
    await panel.person(BOB)

    answers = [await invited(ada, email, "viewer") for email in (BOB, "new@example.com")]

    known, new = [{name: each[name] for name in each.keys() - {"id", "email", "created_at"}} for each in answers]
    assert known == new


async def test_only_who_was_invited_accepts_and_may_leave(panel: PanelHarness) -> None:
    ada, eve = await panel.customer(ADA), await panel.customer("eve@example.com")
    await site(ada, "shop.example")
    member = await invited(ada, "new@example.com", "viewer")
    bob = await joined(panel, ada, BOB, "manager")

    answers = [
        (await by.post(f"/members/{member['id']}/accept")).status_code
        for by in (ada, bob, eve, await panel.administrator())
    ]
    [own] = (await bob.get("/memberships")).json()["items"]
    left = await bob.delete(f"/members/{own['id']}")

    assert answers == [403, 403, 404, 403]
    assert left.status_code == 200
    assert await domains(bob) == []
    assert (await bob.get("/memberships")).json()["items"] == []


async def test_what_a_member_makes_is_the_owners_and_counts_for_the_owners_plan(panel: PanelHarness) -> None:
    root = await panel.administrator()
    await root.post("/plans", {"name": "small", "sites": 1})
    account = (await root.post("/accounts", {"email": ADA, "name": "Ada", "plan": "small"})).json()
    ada = panel.program(await panel.token(UUID(account["id"])))
    bob = await joined(panel, ada, BOB, "manager")

    made = await site(bob, "shop.example")
    one_more = await bob.post("/sites", {"domain": "more.example", "type": "static"})

    assert made["owner_email"] == ADA
    assert one_more.status_code == 409
    assert await domains(ada) == ["shop.example"]
    rows = {row["operation"]: row for row in await panel.audit() if row["outcome"] == "ok"}
    assert rows["site.create"]["actor"] == BOB
    assert str(rows["site.create"]["project_id"]) == account["id"]


async def test_a_member_names_the_account_where_there_are_several(panel: PanelHarness) -> None:
    ada, cyd = await panel.customer(ADA), await panel.customer("cyd@example.com")
    bob = await joined(panel, ada, BOB, "manager")
    [offered] = [await invited(cyd, BOB, "manager")]
    await bob.post(f"/members/{offered['id']}/accept")
    body = {"domain": "shop.example", "type": "static"}

    which = await bob.post("/sites", body)
    foreign = await bob.post("/sites", body | {"owner_email": "eve@example.com"})
    made = await site(bob, "shop.example", owner_email="cyd@example.com")

    assert which.status_code == 400
    assert ADA in which.json()["error"]["hint"]
    assert foreign.status_code == 403
    assert made["owner_email"] == "cyd@example.com"


async def test_a_member_without_an_account_has_nothing_of_their_own(panel: PanelHarness) -> None:
    await panel.person(BOB, "member")
    bob = panel.program(await panel.token(await panel.database.fetchval("SELECT id FROM users")))

    answers = [
        await bob.post("/sites", {"domain": "shop.example", "type": "static"}),
        await bob.post("/sites", {"domain": "shop.example", "type": "static", "owner_email": BOB}),
        await bob.post("/members", {"email": "new@example.com", "role": "manager"}),
    ]

    assert [answer.status_code for answer in answers] == [403, 403, 403]
    assert await domains(bob) == []
    assert (await bob.get("/accounts")).json()["items"] == []


async def test_a_removed_member_is_out_at_once(panel: PanelHarness) -> None:
    ada = await panel.customer(ADA)
    shop = await site(ada, "shop.example")
    bob = await joined(panel, ada, BOB, "manager")
    login = await bob.post(f"/sites/{shop['id']}/sftp", {"name": "bob", "keys": [_KEY]})
    assert login.status_code == 201, login.text

    removed = await ada.delete(f"/members/{(await ada.get('/members')).json()['items'][0]['id']}")

    assert removed.status_code == 200
    assert (await bob.get(f"/sites/{shop['id']}")).status_code == 404
    assert await domains(bob) == []
    assert [each["name"] for each in (await ada.get(f"/sites/{shop['id']}/sftp")).json()] == ["bob"]


async def test_another_role_counts_from_the_next_call(panel: PanelHarness) -> None:
    ada = await panel.customer(ADA)
    shop = await site(ada, "shop.example")
    bob = await joined(panel, ada, BOB, "viewer")
    body = {"path": "/old", "target": "https://example.org/"}

    before = await bob.post(f"/sites/{shop['id']}/redirects", body)
    member = (await ada.get("/members")).json()["items"][0]
    await ada.patch(f"/members/{member['id']}", {"role": "manager"})
    after = await bob.post(f"/sites/{shop['id']}/redirects", body)

    assert (before.status_code, after.status_code) == (403, 201)
    assert (await bob.patch(f"/members/{member['id']}", {"role": "viewer"})).status_code == 403


async def test_an_invitation_that_nobody_used_leaves_nobody_behind(panel: PanelHarness) -> None:
    ada = await panel.customer(ADA)
    member = await invited(ada, "new@example.com", "viewer")

    await ada.delete(f"/members/{member['id']}")

    assert await panel.database.fetchval("SELECT count(*) FROM users WHERE email = 'new@example.com'") == 0


async def test_members_end_with_the_account_and_with_a_site_that_is_given_away(panel: PanelHarness) -> None:
    root, ada = await panel.administrator(), await panel.customer(ADA)
    shop = await site(ada, "shop.example")
    await panel.person("cyd@example.com")
    bob = await joined(panel, ada, BOB, "manager", site_id=shop["id"])

    given = await root.patch(f"/sites/{shop['id']}", {"owner_email": "cyd@example.com"})
    of_site = await domains(bob)
    again = await invited(ada, BOB, "manager")
    owner = await panel.database.fetchval("SELECT id FROM users WHERE email = $1", ADA)
    await panel.database.execute("DELETE FROM users WHERE id = $1", owner)

    assert given.status_code == 200
    assert of_site == []
    assert again["status"] == "invited"
    assert (await bob.get("/memberships")).json()["items"] == []


async def test_invitations_are_bounded(panel: PanelHarness) -> None:
    ada = await panel.customer(ADA)
    for _ in range(INVITATIONS_TO_ONE):
        await invited(ada, BOB, "viewer")

    refused = await ada.post("/members", {"email": BOB, "role": "viewer"})

    assert refused.status_code == 429
    assert len(await mails(panel)) == INVITATIONS_TO_ONE
    assert len((await ada.get("/members")).json()["items"]) == 1


async def test_billing_sees_the_plan_and_no_site(panel: PanelHarness) -> None:
    ada = await panel.customer(ADA)
    shop = await site(ada, "shop.example")
    bob = await joined(panel, ada, BOB, "billing")

    accounts = (await bob.get("/accounts")).json()["items"]

    assert [each["email"] for each in accounts] == [ADA]
    assert (await bob.get(f"/accounts/{accounts[0]['id']}")).json()["used"]["sites"] == 1
    assert await domains(bob) == []
    assert (await bob.get(f"/sites/{shop['id']}")).status_code == 403
    of_one = await ada.post("/members", {"email": "new@example.com", "role": "billing", "site_id": shop["id"]})
    assert of_one.status_code == 400


async def test_nobody_is_a_member_of_their_own_account_or_twice(panel: PanelHarness) -> None:
    ada = await panel.customer(ADA)
    await joined(panel, ada, BOB, "viewer")

    answers = [await ada.post("/members", {"email": email, "role": "viewer"}) for email in (ADA, BOB)]

    assert [answer.status_code for answer in answers] == [409, 409]


async def test_an_administrator_sees_and_changes_all_members(panel: PanelHarness) -> None:
    root, ada = await panel.administrator(), await panel.customer(ADA)
    shop = await site(ada, "shop.example")
    member = await invited(root, BOB, "viewer", site_id=shop["id"])

    listed = (await root.get(f"/members?site={shop['id']}")).json()["items"]
    changed = await root.patch(f"/members/{member['id']}", {"role": "editor"})
    removed = await root.delete(f"/members/{member['id']}")

    assert [(each["email"], each["domain"]) for each in listed] == [(BOB, "shop.example")]
    assert changed.json()["role"] == "editor"
    assert removed.status_code == 200
    assert (await ada.get("/members")).json()["items"] == []


async def test_a_billing_system_lets_a_member_in_by_a_link(panel: PanelHarness) -> None:
    root, ada = await panel.administrator(), await panel.customer(ADA)
    await site(ada, "shop.example")
    await joined(panel, ada, BOB, "viewer")
    [member] = (await ada.get("/members")).json()["items"]
    path = f"/accounts/{member['account_id']}/sign-in-link"

    link = (await root.post(path, {"member": member["id"]})).json()["url"]
    nobodys = await root.post(path, {"member": "00000000-0000-4000-8000-000000000000"})
    browser = panel.browser()
    let_in = await browser.post("/auth/link", {"token": link.partition("token=")[2]})

    assert let_in.json()["user"]["email"] == BOB
    assert await domains(browser) == ["shop.example"]
    assert nobodys.status_code == 404


async def test_a_member_who_buys_a_plan_becomes_a_customer(panel: PanelHarness) -> None:
    root, ada = await panel.administrator(), await panel.customer(ADA)
    await site(ada, "shop.example")
    bob = await joined(panel, ada, BOB, "viewer")
    await root.post("/plans", {"name": "small", "sites": 1})

    bought = await root.post("/accounts", {"email": BOB, "name": "Bob", "plan": "small"})

    assert bought.status_code == 201, bought.text
    await site(bob, "bob.example")
    assert await domains(bob) == ["bob.example", "shop.example"]


_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMwrpzLlW6dLMdB4Z5VtPr4bZLcP9qH5bm0aPjXJ3Wqk bob"


async def test_a_membership_of_a_site_that_has_another_owner_opens_nothing(panel: PanelHarness) -> None:
    ada = await panel.customer(ADA)
    cyd = await panel.person("cyd@example.com")
    shop = await site(ada, "shop.example")
    bob = await joined(panel, ada, BOB, "manager", site_id=shop["id"])
    before = await domains(bob)

    # As an invitation leaves it that is written while the site is handed over.
    await panel.database.execute("UPDATE sites SET owner_id = $2 WHERE id = $1", UUID(shop["id"]), cyd)

    assert before == ["shop.example"]
    assert await domains(bob) == []
    assert (await bob.get(f"/sites/{shop['id']}")).status_code == 404


async def test_a_member_without_an_account_is_made_the_owner_of_no_site(panel: PanelHarness) -> None:
    ada, root = await panel.customer(ADA), await panel.administrator()
    shop = await site(ada, "shop.example")
    await invited(ada, BOB, "manager")

    refused = [
        await root.patch(f"/sites/{shop['id']}", {"owner_email": BOB}),
        await root.post("/sites", {"domain": "new.example", "type": "static", "owner_email": BOB}),
    ]

    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in refused] == [(409, "conflict")] * 2
    assert await domains(root) == ["shop.example"]
    assert await domains(ada) == ["shop.example"]


async def test_a_person_who_owns_a_site_stays_when_their_membership_ends(panel: PanelHarness) -> None:
    ada = await panel.customer(ADA)
    shop = await site(ada, "shop.example")
    member = await invited(ada, BOB, "manager")
    # As an earlier release let an administrator do.
    await panel.database.execute(
        "UPDATE sites SET owner_id = (SELECT id FROM users WHERE email = $2) WHERE id = $1", UUID(shop["id"]), BOB
    )

    removed = await ada.delete(f"/members/{member['id']}")

    assert removed.status_code == 200, removed.text
    assert await panel.database.fetchval("SELECT count(*) FROM users WHERE email = $1", BOB) == 1
