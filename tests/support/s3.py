"""A server of S3 of a test's own (moto), which asks for the access key that it has made and for its secret.

What it holds is in its memory: one that was killed is empty when it is started again, with the same key.
"""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import httpx
import trio

from tests.support.shared import open_for_many
from tests.support.stack import BIN, Program, free_port

BUCKET = "backups"
_REGION = "us-east-1"
_EVERYTHING = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}],
}


@dataclass
class S3:
    url: str
    program: Program
    access_key: str = ""
    secret_key: str = ""

    @property
    def target(self) -> dict[str, str]:
        """What an administrator says of it."""
        return {
            "name": "bucket",
            "endpoint": self.url,
            "bucket": BUCKET,
            "access_key": self.access_key,
            "secret_key": self.secret_key,
        }

    async def start(self) -> None:
        self.program.start()
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as http:
            with trio.fail_after(60):
                while True:
                    try:
                        await self._set_up(http)
                        return
                    except httpx.TransportError:
                        assert self.program.running(), self.program.tail()
                        await trio.sleep(0.05)  # It starts outside of this process.

    async def start_anew(self) -> None:
        """With what one has that was just started, whatever a test before has done to it."""
        if not self.program.running():
            await self.start()
            return
        self.go_on()
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as http:
            (await http.post("/moto-api/reset")).raise_for_status()
            (await http.post("/moto-api/reset-auth", content="inf")).raise_for_status()
            await self._set_up(http)

    async def _set_up(self, http: httpx.AsyncClient) -> None:
        (await http.post("/moto-api/seed?a=1")).raise_for_status()  # The same key at each start.
        await trio.to_thread.run_sync(self._prepare)
        (await http.post("/moto-api/reset-auth", content="0")).raise_for_status()

    async def objects(self, beneath: str = "") -> list[str]:
        """The names of what lies in the bucket."""
        found = await trio.to_thread.run_sync(lambda: self._client("s3").list_objects_v2(Bucket=BUCKET, Prefix=beneath))
        return [each["Key"] for each in found.get("Contents", [])]

    async def lose_largest(self, beneath: str) -> None:
        """The bucket does not have the largest of what lies there any more."""
        client = self._client("s3")
        found = await trio.to_thread.run_sync(lambda: client.list_objects_v2(Bucket=BUCKET, Prefix=beneath))
        largest = max(found["Contents"], key=lambda each: each["Size"])["Key"]
        await trio.to_thread.run_sync(lambda: client.delete_object(Bucket=BUCKET, Key=largest))

    async def buckets(self) -> list[str]:
        found = await trio.to_thread.run_sync(lambda: self._client("s3").list_buckets())
        return [each["Name"] for each in found["Buckets"]]

    def hang(self) -> None:
        """It takes connections, and answers nobody until it `goes_on`."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self.program.process is not None
        self.program.process.send_signal(number)

    def _prepare(self) -> None:
        self.access_key = self.secret_key = ""
        users = self._client("iam")
        users.create_user(UserName="backup")
        users.put_user_policy(UserName="backup", PolicyName="all", PolicyDocument=json.dumps(_EVERYTHING))
        key = users.create_access_key(UserName="backup")["AccessKey"]
        self.access_key, self.secret_key = key["AccessKeyId"], key["SecretAccessKey"]
        self._client("s3").create_bucket(Bucket=BUCKET)

    def _client(self, service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name=_REGION,
            aws_access_key_id=self.access_key or "none",
            aws_secret_access_key=self.secret_key or "none",
        )


@contextmanager
def shared_s3(folder: Path) -> Iterator[S3]:
    """One that has started, for the tests of a module; each begins with `start_anew`. `folder` is new."""
    with open_for_many(open_s3(folder)) as server:
        yield server


@asynccontextmanager
async def open_s3(folder: Path) -> AsyncIterator[S3]:
    """One that has started. `folder` is new."""
    folder.mkdir()
    port = free_port()
    command = [str(BIN / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    server = S3(f"http://127.0.0.1:{port}", Program("S3", command, folder / "log"))
    try:
        await server.start()
        yield server
    finally:
        with trio.CancelScope(shield=True):
            await server.program.kill()
