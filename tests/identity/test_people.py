"""People, projects, keys and settings, over the API."""

from __future__ import annotations

import pytest
import trio

from svc.controller.realm import REALM
from svc.identity.events import views_of
from svc.registry.principal import Principal, Role
from svc_actors.controller.event_kinds import ControllerEvent
from svc_actors.store import EventKind, NewEvent, append
from tests.support.harness import PASSWORD, Client
from tests.support.identity import SSH_KEY, IdentityHarness


async def test_a_suspended_persons_sessions_and_tokens_stop_at_once_and_a_restored_ones_tokens_work_again(
    world: IdentityHarness,
) -> None:
    root = await world.administrator()
    user = await world.person("ada@example.org")
    browser, program = await world.signed_in("ada@example.org"), world.program(await world.token(user))
    path = f"/admin/users/{user}"
    assert (await root.post(f"{path}/suspend", {"reason": "  "})).status_code == 400
    suspended = (await root.post(f"{path}/suspend", {"reason": "abuse report 7"})).json()
    assert (suspended["status"], suspended["suspension_reason"]) == ("suspended", "abuse report 7")
    assert [(await client.get("/me")).status_code for client in (browser, program)] == [401, 401]
    assert (await root.get("/admin/users?status=suspended")).json()["total"] == 1

    restored = (await root.post(f"{path}/restore")).json()
    assert (restored["status"], restored["suspension_reason"], restored["tokens"]) == ("active", None, 1)
    assert (await program.get("/me")).status_code == 200
    assert (await browser.get("/me")).status_code == 401
    await world.signed_in("ada@example.org")


async def test_sign_out_ends_browsers_and_leaves_tokens(world: IdentityHarness) -> None:
    root = await world.administrator()
    user = await world.person("ada@example.org")
    browsers = [await world.signed_in("ada@example.org") for _ in range(3)]
    program = world.program(await world.token(user))
    assert (await root.post(f"/admin/users/{user}/sign-out")).json() == {"sessions": 3}
    assert [(await browser.get("/me")).status_code for browser in browsers] == [401] * 3
    assert (await program.get("/me")).status_code == 200


async def test_a_new_password_follows_the_policy_ends_sessions_and_is_written_nowhere(world: IdentityHarness) -> None:
    root = await world.administrator()
    user = await world.person("ada@example.org")
    browser = await world.signed_in("ada@example.org")
    path = f"/admin/users/{user}/password"
    for bad in (
        "Short-1a",
        "alllowercaseletters",
        "Has spaces In-1t",
        "Äccented-Passw0rd",
        "x" * 129,
        "Ada-ada-ADA-12",
    ):
        assert (await root.post(path, {"password": bad})).status_code == 400, bad
    assert (await browser.get("/me")).status_code == 200
    assert (await root.post(path, {"password": "Brand-New-Secret-9"})).status_code == 204
    assert (await browser.get("/me")).status_code == 401
    await world.signed_in("ada@example.org", password="Brand-New-Secret-9")
    assert "Brand-New" not in str(await world.audit())
    old = await world.browser().post("/auth/login", {"email": "ada@example.org", "password": PASSWORD})
    assert old.status_code == 401


async def test_an_update_leaves_out_what_is_left_out(world: IdentityHarness) -> None:
    root = await world.administrator()
    user = await world.person("ada@example.org")
    await root.call("PATCH", f"/admin/users/{user}", {"phone": "+41 1", "note": "pays late"})
    changed = (await root.call("PATCH", f"/admin/users/{user}", {"company": "Analytical"})).json()
    assert (changed["phone"], changed["note"], changed["company"]) == ("+41 1", "pays late", "Analytical")
    assert changed["email"] == "ada@example.org"


async def test_an_email_address_belongs_to_one_person(world: IdentityHarness) -> None:
    root = await world.administrator()
    user = await world.person("ada@example.org")
    taken = await root.post("/users", {"email": "ADA@example.org", "name": "Other", "password": PASSWORD})
    assert (taken.status_code, taken.json()["error"]["code"]) == (409, "conflict")
    renamed = await root.call("PATCH", f"/admin/users/{user}", {"email": "root@example.org"})
    assert renamed.status_code == 409


async def test_there_is_always_an_administrator(world: IdentityHarness) -> None:
    root = await world.administrator()
    me = (await root.get("/me")).json()["id"]
    assert (await root.post(f"/admin/users/{me}/suspend", {"reason": "r"})).status_code == 409
    for path in (f"/admin/users/{me}", f"/users/{me}"):
        assert (await root.call("PATCH", path, {"role": "customer"})).status_code == 409
    second = await world.person("second@example.org", "administrator")
    other = await world.signed_in("second@example.org")
    statuses = []

    async def demote(client: Client, target: str) -> None:
        statuses.append((await client.call("PATCH", f"/users/{target}", {"role": "staff"})).status_code)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(demote, root, str(second))
        nursery.start_soon(demote, other, me)
    left = await world.database.fetchval("SELECT count(*) FROM users WHERE role = 'administrator'")
    assert left == 1, statuses


async def test_the_list_to_pick_names_from_shows_no_phone_and_no_reason(world: IdentityHarness) -> None:
    root = await world.administrator()
    user = await world.person("ada@example.org")
    await root.call("PATCH", f"/admin/users/{user}", {"phone": "+41 555"})
    await root.post(f"/admin/users/{user}/suspend", {"reason": "abuse"})
    answer = await root.get("/users?q=ada")
    assert answer.json()["total"] == 1
    assert "555" not in answer.text
    assert "abuse" not in answer.text


async def test_one_person_is_shown_with_what_they_own(world: IdentityHarness) -> None:
    root = await world.administrator()
    user = await world.person("ada@example.org")
    await world.token(user)
    shown = (await root.get(f"/admin/users/{user}")).json()
    assert [project["name"] for project in shown["projects"]] == ["project of ada@example.org"]
    assert (shown["vm_count"], shown["token_count"], shown["session_count"]) == (0, 1, 0)
    assert (await root.get("/admin/users/00000000-0000-0000-0000-000000000000")).status_code == 404


async def test_a_customer_sees_their_own_projects_and_no_other(world: IdentityHarness) -> None:
    root = await world.administrator()
    ada, eve = await world.person("ada@example.org"), await world.person("eve@example.org")
    browser = await world.signed_in("ada@example.org")
    [own] = (await browser.get("/projects")).json()["items"]
    foreign = await world.database.fetchval("SELECT project_id FROM project_members WHERE user_id = $1", eve)
    for path in (f"/projects/{foreign}", f"/projects/{foreign}/members"):
        assert (await browser.get(path)).status_code == 404
    assert (await browser.get(f"/projects/{own['id']}/members")).json()["items"][0]["id"] == str(ada)
    assert (await browser.post(f"/projects/{own['id']}/members", {"user_id": str(eve)})).status_code == 403

    joined = await root.post(f"/projects/{foreign}/members", {"user_id": str(ada)})
    assert joined.json()["member_count"] == 2
    assert (await browser.get(f"/projects/{foreign}")).status_code == 200
    assert (await root.call("DELETE", f"/projects/{foreign}/members/{ada}")).status_code == 204
    assert (await browser.get(f"/projects/{foreign}")).status_code == 404
    assert (await root.get("/projects")).json()["total"] == 2


@pytest.mark.parametrize(
    "line",
    [
        "",
        "ssh-ed25519",
        "ssh-dss AAAA",
        "ssh-rsa " + SSH_KEY.split()[1],
        SSH_KEY.replace("NRL", "NR!"),
        SSH_KEY + "\n" + SSH_KEY,
        'command="x" ' + SSH_KEY,
    ],
)
async def test_only_one_whole_ssh_key_of_a_known_kind_is_taken(world: IdentityHarness, line: str) -> None:
    await world.person("ada@example.org")
    browser = await world.signed_in("ada@example.org")
    assert (await browser.post("/ssh-keys", {"name": "k", "public_key": line})).status_code == 400


async def test_ssh_keys_are_ones_own_and_administrators_see_all(world: IdentityHarness) -> None:
    root = await world.administrator()
    await world.person("ada@example.org")
    await world.person("eve@example.org")
    ada, eve = await world.signed_in("ada@example.org"), await world.signed_in("eve@example.org")
    added = await ada.post("/ssh-keys", {"name": "laptop", "public_key": SSH_KEY + "  "})
    assert (added.status_code, added.json()["public_key"]) == (201, SSH_KEY)
    assert added.json()["fingerprint"].startswith("SHA256:")
    assert (await ada.post("/ssh-keys", {"name": "again", "public_key": SSH_KEY})).status_code == 409
    key_id = added.json()["id"]
    assert (await eve.get("/ssh-keys")).json()["total"] == 0
    assert (await eve.call("DELETE", f"/ssh-keys/{key_id}")).status_code == 404
    assert (await root.get("/ssh-keys")).json()["items"][0]["owner"] == "ada@example.org"
    assert (await ada.call("DELETE", f"/ssh-keys/{key_id}")).status_code == 204


async def test_activity_is_ones_own_and_an_administrators_is_everybodys(world: IdentityHarness) -> None:
    root = await world.administrator()
    await world.person("ada@example.org")
    ada = await world.signed_in("ada@example.org")
    own = (await ada.get("/activity")).json()["items"]
    assert {entry["actor"] for entry in own} == {"ada@example.org"}
    everything = (await root.get("/activity?sort=at")).json()
    assert {entry["actor"] for entry in everything["items"]} == {"root@example.org", "ada@example.org"}


async def test_settings_are_the_administrators(world: IdentityHarness) -> None:
    root = await world.administrator()
    changed = await root.call("PATCH", "/settings", {"support_contact": "help@example.org"})
    assert changed.json() == {
        "service_name": "Virtual machines",
        "support_contact": "help@example.org",
        "require_second_factor": False,
        "keep_task_days": 90,
        "keep_event_days": 7,
        "keep_audit_days": 400,
        "keep_sample_days": 400,
        "keep_session_days": 30,
        "keep_mail_days": 30,
        "keep_deleted_days": 90,
        "keep_traffic_months": 25,
        "most_snapshots": 5,
        "most_machines": 25,
        "most_volumes": 10,
        "most_volume_gib": 500,
        "disk_warning_percent": 85,
        "disk_critical_percent": 95,
        "disk_critical_free_mib": 2048,
    }
    assert (await root.get("/settings")).json() == changed.json()
    assert (await root.call("PATCH", "/settings", {"keep_audit_days": 29})).status_code == 400
    user = await world.person("ada@example.org")
    await root.post(f"/admin/users/{user}/suspend", {"reason": "r"})
    told = await world.browser().post("/auth/login", {"email": "ada@example.org", "password": PASSWORD})
    assert "help@example.org" in told.json()["error"]["hint"]


async def test_pages_hold_every_row_once_and_sorting_is_by_what_is_offered(world: IdentityHarness) -> None:
    root = await world.administrator()
    for number in range(24):
        await world.person(f"user{number:02}@example.org", "staff")
    seen = []
    for page in (1, 2, 3):
        answer = (await root.get(f"/users?page={page}&page_size=10&sort=-email")).json()
        assert (answer["total"], answer["pages"], answer["page_size"]) == (25, 3, 10)
        seen += [item["email"] for item in answer["items"]]
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == 25
    beyond = (await root.get("/users?page=9")).json()
    assert (beyond["items"], beyond["total"]) == ([], 25)
    for bad in ("sort=password_hash", "sort=email;drop", "page=0", "page_size=201", "page_size=0", "page=-1"):
        assert (await root.get(f"/users?{bad}")).status_code == 400, bad


async def test_a_search_takes_wildcards_for_what_they_are(world: IdentityHarness) -> None:
    root = await world.administrator()
    await world.person("per%cent@example.org")
    assert (await root.get("/users?q=%25")).json()["total"] == 1
    assert (await root.get("/users?q=_")).json()["total"] == 0


async def test_events_reach_only_those_who_may_see_what_they_tell(world: IdentityHarness) -> None:
    users = {
        "root": await world.person("root@example.org", "administrator"),
        "staff": await world.person("staff@example.org", "staff"),
        "ada": await world.person("ada@example.org"),
        "eve": await world.person("eve@example.org"),
    }
    project = await world.database.fetchval("SELECT project_id FROM project_members WHERE user_id = $1", users["ada"])
    async with world.services.events.subscribe(None) as log:
        async with world.database.transaction() as tx:
            for name, kind, project_id, private in (
                ("machine", ControllerEvent.VM, project, False),
                ("secret", ControllerEvent.VM, project, True),
                ("node", ControllerEvent.NODE, None, False),
                ("image", ControllerEvent.IMAGE, None, False),
                ("audit", EventKind.ACTIVITY, None, True),
            ):
                await append(
                    tx,
                    NewEvent(kind=kind, subject=name, project_id=project_id, administrators_only=private, payload={}),
                )
        events = [await anext(log) for _ in range(5)]
    seen = {}
    for name, user_id in users.items():
        principal = Principal(user_id=user_id, email=name, role=Role.CUSTOMER, scopes=None)
        [view] = await views_of(world.database, REALM, [principal])
        assert view is not None
        seen[name] = {event.subject for event in events if view.sees(event)}
        assert view.operator == (name in ("root", "staff"))
    assert seen == {
        "root": {"machine", "secret", "node", "image", "audit"},
        "staff": {"machine", "node", "image"},
        "ada": {"machine", "image"},
        "eve": {"image"},
    }


async def test_a_stream_may_not_go_on_once_its_session_token_or_person_has_ended(world: IdentityHarness) -> None:
    user = await world.person("ada@example.org")
    await world.signed_in("ada@example.org")
    await world.token(user)
    session = await world.database.fetchval("SELECT id FROM sessions")
    token = await world.database.fetchval("SELECT id FROM api_tokens")
    whole = Principal(user_id=user, email="ada", role=Role.CUSTOMER, scopes=None)

    async def stands(**credential: object) -> bool:
        [view] = await views_of(world.database, REALM, [Principal(**{**vars(whole), **credential})])
        return view is not None

    assert await stands(session_id=session)
    assert await stands(token_id=token)
    await world.database.execute("UPDATE users SET suspended_at = now(), suspension_reason = 'r'")
    assert not await stands(session_id=session)
    assert not await stands(token_id=token)
    await world.database.execute("UPDATE users SET suspended_at = NULL, suspension_reason = NULL")
    await world.database.execute("DELETE FROM sessions")
    assert not await stands(session_id=session)
    assert await stands(token_id=token)
    await world.database.execute("DELETE FROM api_tokens")
    assert not await stands(token_id=token)


async def test_a_new_customer_has_a_project_of_their_own_and_others_have_none(world: IdentityHarness) -> None:
    root = await world.administrator()
    await root.post("/projects", {"name": "ada@example.org"})

    for email, role in (("ada@example.org", "customer"), ("bob@example.org", "customer"), ("sam@example.org", "staff")):
        made = await root.post("/users", {"email": email, "name": email, "role": role, "password": PASSWORD})
        assert made.status_code == 201, made.text

    ada, bob = await world.signed_in("ada@example.org"), await world.signed_in("bob@example.org")
    assert [each["name"] for each in (await ada.get("/projects")).json()["items"]] == ["ada@example.org 2"]
    assert [each["name"] for each in (await bob.get("/projects")).json()["items"]] == ["bob@example.org"]
    assert (await root.get("/projects")).json()["total"] == 3


async def test_project_names_are_given_once(world: IdentityHarness) -> None:
    root = await world.administrator()
    one = (await root.post("/projects", {"name": "one"})).json()
    two = (await root.post("/projects", {"name": "two"})).json()

    again = await root.post("/projects", {"name": "one"})
    renamed = await root.call("PATCH", f"/projects/{two['id']}", {"name": "one"})

    assert [answer.json()["error"]["code"] for answer in (again, renamed)] == ["conflict", "conflict"]
    assert (await root.call("PATCH", f"/projects/{one['id']}", {"name": "one"})).status_code == 200


async def test_the_audit_has_one_word_for_people(world: IdentityHarness) -> None:
    root = await world.administrator()
    ada = await world.person("ada@example.org")
    await root.post(f"/admin/users/{ada}/suspend", {"reason": "r"})
    await root.post(f"/admin/users/{ada}/suspend", {"reason": " "})
    await world.browser().post("/auth/login", {"email": "ada@example.org", "password": "wrong"})

    kinds = {row["target_kind"] for row in await world.audit()}

    assert kinds == {"user"}
