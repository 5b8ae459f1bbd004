"""What every request is checked for and how every failure looks, whatever operation it is for."""

from __future__ import annotations

import json

import httpx
import pytest

from svc_actors.store import Database

WRITER = {"Authorization": "Bearer customer,write"}


def error(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["Content-Type"] == "application/json"
    assert set(answer.json()) == {"error"}
    assert answer.json()["error"]["message"]
    return answer.status_code, answer.json()["error"]["code"]


async def test_an_answer_is_json_is_never_cached_and_carries_its_request_id(toys: httpx.AsyncClient) -> None:
    answer = await toys.get("/toys/ball", headers={**WRITER, "X-Request-Id": "trace-1"})
    assert (answer.status_code, answer.json()) == (200, {"id": "ball", "size": 1, "note": None})
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Request-Id"] == "trace-1"
    assert "Server" not in answer.headers


async def test_what_is_no_data_is_framed_scripted_and_referred_to_by_nobody(toys: httpx.AsyncClient) -> None:
    answer = await toys.get("https://toys.test/nowhere")
    assert error(answer) == (404, "not_found")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert answer.headers["Strict-Transport-Security"] == "max-age=86400"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("given", ["bad id", "x" * 65, "a\tb", ""])
async def test_a_request_id_that_is_no_plain_word_is_replaced(toys: httpx.AsyncClient, given: str) -> None:
    answer = await toys.get("/toys/ball", headers={**WRITER, "X-Request-Id": given})
    assert answer.headers["X-Request-Id"] != given
    assert len(answer.headers["X-Request-Id"]) == 24


@pytest.mark.parametrize(
    "path", ["/", "/toys/ball/nothing", "/toys/", "//toys", "/nowhere/%F0%9F%A6%86", "/toys/a%2Fb"]
)
async def test_an_unknown_path_is_not_found(toys: httpx.AsyncClient, path: str) -> None:
    assert error(await toys.get(f"https://toys.test/api/v1{path}")) == (404, "not_found")


async def test_a_wrong_method_names_the_right_ones(toys: httpx.AsyncClient) -> None:
    for method in ("POST", "OPTIONS", "TRACE", "BREW"):
        answer = await toys.request(method, "/toys/ball")
        assert error(answer) == (405, "invalid")
        assert answer.headers["Allow"] == "GET, HEAD, PUT"


async def test_without_a_credential_or_with_a_bad_one_one_is_unauthenticated(toys: httpx.AsyncClient) -> None:
    for headers in ({}, {"Authorization": "Bearer nobody"}, {"Cookie": "svcvm_session=wrong"}):
        answer = await toys.get("/toys/ball", headers=headers)
        assert error(answer) == (401, "unauthenticated")
        assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_scope_then_role_then_body_are_checked_in_this_order(toys: httpx.AsyncClient) -> None:
    async def delete(who: str) -> tuple[int, str, str]:
        answer = await toys.request(
            "DELETE",
            "/toys",
            content=b"{broken",
            headers={"Authorization": f"Bearer {who}", "Content-Type": "text/plain"},
        )
        return *error(answer), answer.json()["error"]["message"]

    assert (await delete("nobody"))[:2] == (401, "unauthenticated")
    assert "scope" in (await delete("customer,read"))[2]
    assert "administrators only" in (await delete("customer,admin"))[2]
    assert (await delete("administrator,write"))[:2] == (400, "invalid")


async def test_an_answer_with_nothing_to_say_is_204(toys: httpx.AsyncClient) -> None:
    answer = await toys.request("DELETE", "/toys", headers={"Authorization": "Bearer administrator,write"})
    assert (answer.status_code, answer.content) == (204, b"")


@pytest.mark.parametrize(
    ("content", "content_type", "says"),
    [
        (b"{", "application/json", "not JSON"),
        (b'{"size": 1}', "text/plain", "application/json"),
        (b"size=1", "application/x-www-form-urlencoded", "application/json"),
        (b'{"size": 1}', None, "Content-Type"),
        (b"[1]", "application/json", "object"),
        (b'{"size": NaN}', "application/json", "not JSON"),
        (b'{"size": 1, "nose": "long"}', "application/json", "nose: unknown field"),
        (b"{}", "application/json", "size: required"),
        (b'{"size": "1"}', "application/json", "size"),
        (b'{"size": true}', "application/json", "size"),
        (b'{"size": 11}', "application/json", "size"),
        (b'{"size": 1, "note": "\\u0000"}', "application/json", "NUL"),
        (b'{"size": 1, "note": "\\ud800"}', "application/json", "not JSON"),
        (b'{"size": 1, "note": ' + b'{"a":' * 40 + b"1" + b"}" * 41, "application/json", "deeper"),
        (b"[" * 100_000, "application/json", "not JSON"),
        (b'\xff{"size": 1}', "application/json", "not JSON"),
    ],
)
async def test_a_bad_body_is_invalid_and_says_why(
    toys: httpx.AsyncClient, content: bytes, content_type: str | None, says: str
) -> None:
    headers = {**WRITER, **({"Content-Type": content_type} if content_type else {})}
    answer = await toys.put("/toys/ball", content=content, headers=headers)
    assert error(answer) == (400, "invalid")
    assert says in answer.json()["error"]["message"]


async def test_every_wrong_field_is_named_and_no_value_is_echoed(toys: httpx.AsyncClient) -> None:
    answer = await toys.put("/toys/ball", json={"size": "hunter2", "note": 5, "extra": "hunter2"}, headers=WRITER)
    fields = {entry["field"] for entry in answer.json()["error"]["details"]["fields"]}
    assert fields == {"size", "note", "extra"}
    assert "hunter2" not in answer.text


async def test_a_body_of_a_million_bytes_is_read_and_one_more_is_refused(toys: httpx.AsyncClient) -> None:
    frame = len(json.dumps({"size": 1, "note": ""}))
    for length, status in ((1_000_000, 201), (1_000_001, 400)):
        body = json.dumps({"size": 1, "note": "x" * (length - frame)})
        assert len(body) == length
        answer = await toys.put("/toys/ball", content=body, headers={**WRITER, "Content-Type": "application/json"})
        assert answer.status_code == status


async def test_the_id_in_the_path_wins_over_one_in_the_body(toys: httpx.AsyncClient) -> None:
    answer = await toys.put("/toys/ball", json={"id": "doll", "size": 1}, headers=WRITER)
    assert answer.json()["id"] == "ball"


@pytest.mark.parametrize("query", ["size=x", "size=1&size=2", "nose=1", "tag=%FF", "tag=%00", "size=", "broken=maybe"])
async def test_a_bad_query_is_invalid(toys: httpx.AsyncClient, query: str) -> None:
    assert error(await toys.get(f"/toys?{query}")) == (400, "invalid")


async def test_a_query_reads_numbers_and_repeated_fields(toys: httpx.AsyncClient) -> None:
    answer = await toys.get("/toys?size=3&tag=a&tag=b%20c")
    assert [(toy["id"], toy["size"]) for toy in answer.json()] == [("a", 3), ("b c", 3)]


async def test_a_defect_is_internal_with_a_request_id_and_no_word_of_what_broke(toys: httpx.AsyncClient) -> None:
    answer = await toys.get("/toys?broken=true")
    assert error(answer) == (500, "internal")
    assert answer.json()["error"]["details"] == {"request_id": answer.headers["X-Request-Id"]}
    assert "leaked" not in answer.text
    assert "Traceback" not in answer.text


async def test_too_fast_says_when_to_come_back(toys: httpx.AsyncClient) -> None:
    answer = await toys.put("/toys/ball", json={"size": 1, "note": "refuse"}, headers=WRITER)
    assert error(answer) == (429, "rate_limited")
    assert answer.headers["Retry-After"] == "7"


async def test_the_idempotency_key_may_come_as_a_header(toys: httpx.AsyncClient) -> None:
    both = {**WRITER, "Idempotency-Key": "k1"}
    assert (await toys.put("/toys/ball", json={"size": 1}, headers=both)).status_code == 201
    assert (await toys.put("/toys/ball", json={"size": 1, "idempotency_key": "k1"}, headers=both)).status_code == 201
    differing = await toys.put("/toys/ball", json={"size": 1, "idempotency_key": "k2"}, headers=both)
    assert error(differing) == (400, "invalid")


async def test_forwarded_headers_are_not_believed(toys: httpx.AsyncClient, database: Database) -> None:
    forged = {"X-Forwarded-For": "203.0.113.1", "Forwarded": "for=203.0.113.1", "X-Real-IP": "203.0.113.1"}
    await toys.put("/toys/ball", json={"size": 1}, headers={**WRITER, **forged})
    assert await database.fetchval("SELECT address FROM audit") == "192.0.2.9"


async def test_a_redirect_never_leaves_this_service(toys: httpx.AsyncClient) -> None:
    for path, location in (("~vms", "/vms"), ("~~evil.test", "/"), ("https:~~evil.test", "/"), ("~\\evil.test", "/")):
        answer = await toys.get(f"/link/{path}")
        assert (answer.status_code, answer.headers["Location"]) == (303, location)


async def test_a_support_session_looks_and_does_not_act(toys: httpx.AsyncClient) -> None:
    cookie = {"Cookie": "svcvm_session=support", "Origin": "https://toys.test", "X-Service-Request": "1"}
    assert (await toys.get("/toys/ball", headers=cookie)).status_code == 200
    answer = await toys.put("/toys/ball", json={"size": 1}, headers=cookie)
    assert error(answer) == (403, "forbidden")
    assert answer.json()["error"]["message"] == "a support session can look, not act"


async def test_what_was_refused_is_in_the_audit_once_under_its_request_id(
    toys: httpx.AsyncClient, database: Database
) -> None:
    reader = {"Authorization": "Bearer customer,read"}
    refused = await toys.put("/toys/ball", json={"size": 1}, headers=reader)
    malformed = await toys.put("/toys/ball", json={"size": "x"}, headers=WRITER)
    done = await toys.put("/toys/ball", json={"size": 1}, headers=WRITER)
    await toys.get("/toys/ball", headers=reader)
    rows = await database.fetch("SELECT request_id, operation, outcome, error_code, target_id FROM audit ORDER BY id")
    assert [tuple(row) for row in rows] == [
        (refused.headers["X-Request-Id"], "toy.make", "denied", "forbidden", "ball"),
        (malformed.headers["X-Request-Id"], "toy.make", "denied", "invalid", "ball"),
        (done.headers["X-Request-Id"], "toy.make", "ok", None, "ball"),
    ]
