"""Security groups and their rules over the API, and who may see and change them."""

from __future__ import annotations

import json
from typing import Any, cast
from uuid import uuid4

import pytest

from svc.controller.catalogue import controller_registry
from svc.registry.parameters import ParameterReader, Parameters
from svc_actors.controller.networking.security_groups import MAX_GROUPS_OF_A_PROJECT, MAX_RULES
from svc_common.errors import ErrorCode, ServiceError
from tests.identity.test_support import REFUSAL, inside
from tests.support.harness import said
from tests.support.security_groups import HTTPS, SecurityGroupHarness, made, refusal


async def test_a_group_lets_nothing_in_and_everything_out_until_it_has_rules(place: SecurityGroupHarness) -> None:
    group = await place.group(place.ada, description="what the web needs")
    assert (group["default_ingress"], group["default_egress"], group["rules"]) == ("drop", "accept", [])
    assert (group["project_id"], group["machine_count"]) == (str(place.projects["ada"]), 0)
    assert group["project_name"] == "project of ada@example.org"
    shown = (await place.ada.get(f"/security-groups/{group['id']}")).json()
    assert shown == group
    assert shown["description"] == "what the web needs"


async def test_a_rule_is_shown_whole_with_what_was_left_out_filled_in(place: SecurityGroupHarness) -> None:
    group = await place.group(place.ada)
    rule = await place.rule(place.ada, group, cidr="192.0.2.0/24", note="the office")
    said = {key: value for key, value in rule.items() if key not in ("id", "created_at")}
    assert said == {
        "direction": "ingress",
        "action": "accept",
        "protocol": "tcp",
        "family": 4,
        "port_from": 443,
        "port_to": 443,
        "cidr": "192.0.2.0/24",
        "icmp_type": None,
        "note": "the office",
    }
    assert (await place.ada.get(f"/security-groups/{group['id']}")).json()["rules"] == [rule]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"protocol": "icmp"}, "port_from"),
        ({"protocol": "any"}, "port_from"),
        ({"port_to": 80}, "port_to"),
        ({"port_from": None, "port_to": 80}, "port_from"),
        ({"port_from": 65536}, "port_from"),
        ({"protocol": "sctp"}, "protocol"),
        ({"direction": "in"}, "direction"),
        ({"action": "reject"}, "action"),
        ({"family": 5}, "family"),
        ({"family": 6, "cidr": "192.0.2.0/24"}, "cidr"),
        ({"cidr": "192.0.2.1/24"}, "cidr"),
        ({"cidr": "fe80::1%eth0"}, "cidr"),
        ({"icmp_type": 8}, "icmp_type"),
        ({"protocol": "icmp", "port_from": None, "icmp_type": 8}, "family"),
        ({"protocol": "icmp", "port_from": None, "icmp_type": 256, "family": 4}, "icmp_type"),
        ({"interface": "eth0"}, "interface"),
    ],
)
async def test_a_rule_that_contradicts_itself_is_refused_by_the_name_of_the_field(
    values: dict[str, Any], field: str
) -> None:
    wanted = {name: value for name, value in (HTTPS | values).items() if value is not None}

    async def body() -> bytes:
        return json.dumps(wanted).encode()

    reader = ParameterReader(controller_registry()["security_group.add_rule"])
    with pytest.raises(ServiceError) as refused:
        (await reader.read(Parameters(path={"id": str(uuid4())}, body=body))).rule()
    assert refused.value.code is ErrorCode.INVALID
    assert refused.value.details is not None
    assert {entry["field"] for entry in cast(list[dict[str, str]], refused.value.details["fields"])} == {field}


async def test_a_type_of_icmp_takes_its_family_from_the_cidr(place: SecurityGroupHarness) -> None:
    group = await place.group(place.ada)
    wanted = {"direction": "ingress", "protocol": "icmp", "icmp_type": 128, "cidr": "2001:db8::/32"}
    rule = made(await place.ada.post(f"/security-groups/{group['id']}/rules", wanted))
    assert (rule["family"], rule["icmp_type"]) == (6, 128)


async def test_the_same_rule_twice_is_refused_and_another_action_is_another_rule(place: SecurityGroupHarness) -> None:
    group = await place.group(place.ada)
    await place.rule(place.ada, group)
    again = await place.ada.post(f"/security-groups/{group['id']}/rules", HTTPS | {"port_to": 443, "note": "again"})
    assert refusal(again) == (409, "conflict")
    await place.rule(place.ada, group, action="drop")
    assert len((await place.ada.get(f"/security-groups/{group['id']}")).json()["rules"]) == 2


async def test_a_rule_is_taken_out_of_its_own_group_only(place: SecurityGroupHarness) -> None:
    web, ssh = await place.group(place.ada, "web"), await place.group(place.ada, "ssh")
    rule = await place.rule(place.ada, web)
    elsewhere = await place.ada.call("DELETE", f"/security-groups/{ssh['id']}/rules/{rule['id']}")
    assert refusal(elsewhere) == (404, "not_found")
    assert (await place.ada.call("DELETE", f"/security-groups/{web['id']}/rules/{rule['id']}")).status_code == 204
    assert (await place.ada.get(f"/security-groups/{web['id']}")).json()["rules"] == []


async def test_a_group_holds_no_more_rules_than_it_may(place: SecurityGroupHarness) -> None:
    group = await place.group(place.ada)
    await place.database.execute(
        """INSERT INTO security_group_rules (group_id, direction, action, protocol, port_from, port_to)
           SELECT $1, 'ingress', 'accept', 'tcp', n, n FROM generate_series(1000, 998 + $2::int) AS n""",
        group["id"],
        MAX_RULES,
    )
    await place.rule(place.ada, group)
    one_more = await place.ada.post(f"/security-groups/{group['id']}/rules", HTTPS | {"port_from": 80})
    assert refusal(one_more) == (409, "capacity")


async def test_a_project_holds_no_more_groups_than_it_may(place: SecurityGroupHarness) -> None:
    await place.database.execute(
        "INSERT INTO security_groups (project_id, name) SELECT $1, 'g' || n FROM generate_series(2, $2::int) AS n",
        place.projects["ada"],
        MAX_GROUPS_OF_A_PROJECT,
    )
    await place.group(place.ada, "last")
    assert refusal(await place.ada.post("/security-groups", {"name": "more"})) == (409, "capacity")
    await place.group(place.eve, "hers")


async def test_a_name_is_one_groups_in_a_project(place: SecurityGroupHarness) -> None:
    await place.group(place.ada, "web")
    assert refusal(await place.ada.post("/security-groups", {"name": "web"})) == (409, "conflict")
    await place.group(place.eve, "web")
    await place.group(place.root, "web")
    assert refusal(await place.root.post("/security-groups", {"name": "web"})) == (409, "conflict")


async def test_a_customer_sees_their_own_groups_and_those_for_all_and_an_administrator_sees_all(
    place: SecurityGroupHarness,
) -> None:
    await place.group(place.ada, "of-ada")
    await place.group(place.eve, "of-eve")
    await place.group(place.root, "for-all")
    names = {
        who: [group["name"] for group in (await client.get("/security-groups")).json()["items"]]
        for who, client in (("ada", place.ada), ("eve", place.eve), ("root", place.root), ("staff", place.staff))
    }
    assert names == {
        "ada": ["for-all", "of-ada"],
        "eve": ["for-all", "of-eve"],
        "root": ["for-all", "of-ada", "of-eve"],
        "staff": ["for-all", "of-ada", "of-eve"],
    }
    found = (await place.root.get("/security-groups?q=OF-A")).json()
    assert (found["total"], found["items"][0]["name"]) == (1, "of-ada")
    of_eve = (await place.root.get(f"/security-groups?project={place.projects['eve']}")).json()
    assert [group["name"] for group in of_eve["items"]] == ["of-eve"]


async def test_a_foreign_group_and_an_absent_one_are_answered_alike(place: SecurityGroupHarness) -> None:
    group = await place.group(place.eve, "canary")
    rule = await place.rule(place.eve, group, note="canary")
    for method, path, body in (
        ("GET", "/security-groups/{}", None),
        ("DELETE", "/security-groups/{}", None),
        ("POST", "/security-groups/{}/rules", HTTPS),
        ("DELETE", "/security-groups/{}/rules/" + rule["id"], None),
    ):
        answers = [await place.ada.call(method, path.format(chosen), body) for chosen in (group["id"], uuid4())]
        assert refusal(answers[0]) == (404, "not_found")
        assert said(answers[0]) == said(answers[1])
        assert "canary" not in answers[0].text
    assert (await place.eve.get(f"/security-groups/{group['id']}")).json()["rules"] == [rule]


async def test_a_customer_makes_groups_in_their_own_projects_only(place: SecurityGroupHarness) -> None:
    foreign = await place.ada.post("/security-groups", {"name": "x", "project_id": str(place.projects["eve"])})
    assert refusal(foreign) == (404, "not_found")
    both = await place.world.person("both@example.org")
    await place.database.execute(
        "INSERT INTO project_members (project_id, user_id) VALUES ($1, $2)", place.projects["eve"], both
    )
    client = place.world.program(await place.world.token(both))
    assert refusal(await client.post("/security-groups", {"name": "x"})) == (400, "invalid")
    group = await place.group(client, "x", project_id=str(place.projects["eve"]))
    assert group["project_id"] == str(place.projects["eve"])


async def test_a_group_for_all_projects_is_an_administrators_to_change(place: SecurityGroupHarness) -> None:
    group = await place.group(place.root, "for-all")
    assert group["project_id"] is None
    for client in (place.ada, place.staff):
        assert refusal(await client.post(f"/security-groups/{group['id']}/rules", HTTPS)) == (403, "forbidden")
        assert refusal(await client.call("DELETE", f"/security-groups/{group['id']}")) == (403, "forbidden")
    await place.rule(place.root, group)
    assert (await place.root.call("DELETE", f"/security-groups/{group['id']}")).status_code == 204
    assert refusal(await place.root.get(f"/security-groups/{group['id']}")) == (404, "not_found")


async def test_staff_name_the_project_of_a_group_they_make(place: SecurityGroupHarness) -> None:
    assert refusal(await place.staff.post("/security-groups", {"name": "x"})) == (400, "invalid")
    await place.group(place.staff, "x", project_id=str(place.projects["eve"]))


async def test_a_read_token_changes_nothing(place: SecurityGroupHarness) -> None:
    group = await place.group(place.ada)
    ada = await place.database.fetchval("SELECT id FROM users WHERE email = 'ada@example.org'")
    reader = place.world.program(await place.world.token(ada, scopes=("read",)))
    assert (await reader.get(f"/security-groups/{group['id']}")).status_code == 200
    assert refusal(await reader.post("/security-groups", {"name": "x"})) == (403, "forbidden")
    assert refusal(await reader.post(f"/security-groups/{group['id']}/rules", HTTPS)) == (403, "forbidden")


async def test_a_support_session_can_look_at_groups_and_not_change_them(place: SecurityGroupHarness) -> None:
    await place.database.execute("UPDATE users SET email = 'other-' || email")
    await place.database.execute("UPDATE projects SET name = 'other-' || name")
    browser, _, _ = await inside(place.world)
    assert (await browser.get("/security-groups")).status_code == 200
    changes = [
        operation.route
        for operation in controller_registry()
        if operation.mutates and "security-groups" in operation.route.path
    ]
    assert len(changes) >= 4
    for route in changes:
        path = route.path.replace("{id}", str(uuid4())).replace("{rid}", str(uuid4()))
        answer = await browser.call(route.method.value, path, {})
        assert said(answer) == {"code": "forbidden", "message": REFUSAL, "details": {}}, path


async def test_every_change_is_audited_with_the_rule_that_was_changed(place: SecurityGroupHarness) -> None:
    group = await place.group(place.ada)
    rule = await place.rule(place.ada, group, note="why")
    await place.ada.call("DELETE", f"/security-groups/{group['id']}/rules/{rule['id']}")
    await place.ada.call("DELETE", f"/security-groups/{group['id']}")
    rows = [row for row in await place.world.audit() if row["target_kind"] == "security_group"]
    assert [row["operation"] for row in rows] == [
        "security_group.create",
        "security_group.add_rule",
        "security_group.remove_rule",
        "security_group.delete",
    ]
    assert all(row["target_name"] == "web" and row["project_id"] == place.projects["ada"] for row in rows)
    for row in rows[1:3]:
        assert row["details"]["rule"] == {
            "id": rule["id"],
            "direction": "ingress",
            "action": "accept",
            "protocol": "tcp",
            "port_from": 443,
            "port_to": 443,
            "note": "why",
        }
