"""Temporary keys against a server that enforces them, by real restic: one machine's copies, and nothing beside them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import pytest
import trio

from svc_actors.controller.backups.temporary_keys import KeyNeed, Sts, temporary_keys
from svc_nodeagent.aws_signing import Keys, signed
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.backups.store import store_at
from svc_nodeagent.protocol import BucketPlace, FailureCode
from tests.nodeagent.hypervisor.test_backup_store import MIB, content_of, keep
from tests.support.bound_s3 import BUCKET, ROLE, Gate, bound
from tests.support.s3 import S3, shared_s3

pytestmark = [pytest.mark.system, pytest.mark.isolated]


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with shared_s3(tmp_path_factory.mktemp("s3") / "server") as server:
        yield server


@pytest.fixture
async def s3(s3_server: S3) -> S3:
    """With an empty bucket."""
    await s3_server.start_anew()
    return s3_server


async def place_of(s3: S3, gate: Gate, vm_id: UUID, *, reads_only: bool = False) -> BucketPlace:
    own = Keys(s3.access_key, s3.secret_key)
    sts = Sts(gate.url, "us-east-1", ROLE)
    keys = await temporary_keys(sts, own, BUCKET, "machines", KeyNeed(vm_id, reads_only, 6 * 3600.0))
    assert keys.access_key != s3.access_key
    return BucketPlace(
        name="bucket",
        endpoint=gate.url,
        bucket=BUCKET,
        prefix="machines",
        region="us-east-1",
        access_key=keys.access_key,
        secret_key=keys.secret_key,
        session_token=keys.session_token,
    )


async def status_of(place: BucketPlace, method: str, path: str, **query: str) -> int:
    keys = Keys(place.access_key, place.secret_key, place.session_token)
    url, headers = signed(
        keys,
        method,
        f"{place.endpoint}/{BUCKET}{path}",
        service="s3",
        region="us-east-1",
        at=datetime.now(UTC),
        query=query,
        body=b"x" if method == "PUT" else b"",
    )
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        content = b"x" if method == "PUT" else None
        return (await http.request(method, url, headers=headers, content=content)).status_code


async def test_keys_of_one_machine_open_its_copies_alone(s3: S3) -> None:
    own, other = uuid4(), uuid4()
    with trio.fail_after(300), bound(s3) as gate:
        store = store_at(Path("/nowhere"), own, "key", await place_of(s3, gate, own))
        theirs = store_at(Path("/nowhere"), other, "key", await place_of(s3, gate, other))
        content = os.urandom(MIB)
        for each in (store, theirs):
            await each.prepare()
        first, second = await keep(store, content), await keep(store, content + b"more")
        await keep(theirs, content)
        await store.forget_copies({first})
        assert await store.prune()

        place = await place_of(s3, gate, own)
        [config] = await s3.objects(f"machines/{other}/config")
        held = await s3.objects()
        for method in ("GET", "PUT", "DELETE"):
            assert await status_of(place, method, f"/{config}") == 403
        assert await status_of(place, "GET", "", prefix=f"machines/{other}/") == 403
        assert await status_of(place, "GET", "", prefix="machines/") == 403
        assert await status_of(place, "GET", "") == 403
        assert await status_of(place, "PUT", f"/machines/{own}0/config") == 403
        assert await s3.objects() == held

        # What only reads is refused every change, and reads all the same
        reading = await place_of(s3, gate, own, reads_only=True)
        assert await content_of(store_at(Path("/nowhere"), own, "key", reading), second) == content + b"more"
        for method in ("PUT", "DELETE"):
            assert await status_of(reading, method, f"/machines/{own}/config") == 403
        assert await status_of(reading, "GET", f"/machines/{own}/config") == 200

        # A store that is not there is told from keys that open nothing
        nothing = uuid4()
        with pytest.raises(HostError) as absent:
            await store_at(Path("/nowhere"), nothing, "key", await place_of(s3, gate, nothing)).listing()
        assert absent.value.code is FailureCode.NOT_FOUND
        gate.expired.add(place.access_key)
        for order in (
            store_at(Path("/nowhere"), own, "key", place).listing,
            store_at(Path("/nowhere"), own, "key", place).remove,
        ):
            with pytest.raises(HostError) as refused:
                await order()
            assert refused.value.code is FailureCode.TARGET

        await store_at(Path("/nowhere"), own, "key", await place_of(s3, gate, own)).remove()
        assert await s3.objects(f"machines/{other}") == [each for each in held if str(other) in each]
