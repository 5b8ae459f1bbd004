"""Maintains one certificate: executes the steps that its actor decides, and installs the result where it is served.

Each step is one exchange with the authority and may be repeated. Only what the actor has recorded counts, so this loop
may end at any point, with its process or by an error, and start again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

import httpx
import trio

from svc_actors.acme import (
    AcmeClient,
    AcmeError,
    Challenges,
    Order,
    Proof,
    Refused,
    Status,
    load_key,
    signing_request,
)
from svc_actors.acme.errors import refused
from svc_actors.certificates.issuing import Issued, IssuedCertificate, Wait, Work
from svc_actors.certificates.settings import AcmeSettings
from svc_actors.runtime import ActorSystem, Ref
from svc_actors.store import Caller

POLL_SECONDS: Final = 2.0
"""How often an order is polled if the authority does not say."""
SHORTEST_POLL_SECONDS: Final = 0.1
LONGEST_POLL_SECONDS: Final = 60.0
LONGEST_SLEEP_SECONDS: Final = 3600.0
"""The machine's clock may be set while the loop sleeps, so it looks again after at most this long."""
_TIMEOUT: Final = 20.0

Install = Callable[[Issued], Awaitable[None]]
"""Installs a certificate where it is served from; must be idempotent."""
OpenHttp = Callable[[], httpx.AsyncClient]
ChallengesT = TypeVar("ChallengesT", bound=Challenges)


class Keeper(Generic[ChallengesT]):
    """`name` identifies the certificate, `names` are its host names. `open_http` is for tests."""

    def __init__(
        self,
        actors: ActorSystem,
        name: str,
        names: Sequence[str],
        settings: AcmeSettings,
        challenges: ChallengesT,
        install: Install,
        *,
        open_http: OpenHttp | None = None,
    ) -> None:
        self._actor: Ref[IssuedCertificate] = actors.ref(IssuedCertificate, name)
        self._name = name
        self._names = tuple(names)
        self._settings = settings
        self.challenges = challenges
        self._install = install
        self._open_http = open_http or self._http
        self._asked = trio.Event()

    async def install_current(self) -> None:
        """Install the current certificate, if any. Call it before `run`, and before anything listens."""
        settings = self._settings
        there = await self._actor.ask(
            IssuedCertificate.want, settings.directory, settings.contact, self._names, self.challenges.type
        )
        if there is not None:
            await self._install(there)

    async def renew(self, caller: Caller) -> None:
        """Get a new certificate now."""
        await self._actor.ask(IssuedCertificate.renew, caller)
        self._asked.set()

    async def run(self) -> None:
        """Get and renew the certificate until cancelled. Raises what the actor raises; a new call resumes."""
        while True:
            self._asked = trio.Event()
            until = await self.attempt()
            seconds = (until - datetime.now(UTC)).total_seconds()
            with trio.move_on_after(min(max(seconds, 0.0), LONGEST_SLEEP_SECONDS)):
                await self._asked.wait()

    async def attempt(self) -> datetime:
        """Do what is due now; returns when the next step is due."""
        step = await self._actor.ask(IssuedCertificate.step)
        if isinstance(step, Wait):
            return step.until
        try:
            async with self._open_http() as http:
                client = AcmeClient(http, step.directory, load_key(step.account_key), step.account_url)
                # The type of challenge in the configuration may have changed meanwhile: proofs of another type are
                # shown by another keeper, at another place.
                while isinstance(step, Work) and step.challenge is self.challenges.type:
                    await self._act(client, step)
                    step = await self._actor.ask(IssuedCertificate.step)
        except AcmeError as error:
            await self._actor.ask(IssuedCertificate.failed, error)
            step = await self._actor.ask(IssuedCertificate.step)
        finally:
            await self.challenges.withdraw(self._name)
        return step.until if isinstance(step, Wait) else datetime.now(UTC)

    async def _act(self, client: AcmeClient, work: Work) -> None:
        """One exchange with the authority. Raises `AcmeError`."""
        if work.account_url is None:
            settings = self._settings
            url = await client.register(
                settings.contact, terms_agreed=settings.terms_agreed, external=settings.external_account()
            )
            await self._actor.ask(IssuedCertificate.registered, work.directory, url)
        elif work.order_url is None:
            order = await client.new_order(work.names)
            await self._actor.ask(IssuedCertificate.ordered, order.url)
        else:
            await self._further(client, work, await client.order(work.order_url))

    async def _further(self, client: AcmeClient, work: Work, order: Order) -> None:
        match order.status:
            case Status.PENDING:
                await self._prove(client, order)
                await _pause(order)
            case Status.READY:
                await client.finalise(order, signing_request(load_key(work.key), work.names))
            case Status.VALID:
                issued = await self._actor.ask(IssuedCertificate.issued, await client.certificate(order))
                if issued is not None:
                    await self._install(issued)
            case Status.PROCESSING:
                await _pause(order)
            case _:
                raise await self._problem(client, order)

    async def _prove(self, client: AcmeClient, order: Order) -> None:
        """Answer the open challenges. Proofs that the authority is already checking stay in place."""
        wanted = self.challenges.type
        proofs, unheard = [], []
        for url in order.authorizations:
            authorization = await client.authorization(url)
            if authorization.status is not Status.PENDING:
                continue
            name = authorization.identifier.value
            challenge = authorization.challenge(wanted)
            if challenge is None:
                offered = ", ".join(each.type for each in authorization.challenges)
                raise Refused(f"The authority does not take {wanted} for {name}, only {offered}.")
            proofs.append(Proof(name, challenge.token, client.proof(challenge.token)))
            if challenge.status is Status.PENDING:
                unheard.append(challenge)
        await self.challenges.offer(self._name, proofs)
        for challenge in unheard:
            await client.respond(challenge)

    async def _problem(self, client: AcmeClient, order: Order) -> AcmeError:
        """Why an order has failed: the errors of its authorizations say more than the error of the order."""
        found = [(await client.authorization(url)).problem for url in order.authorizations]
        if words := " ".join(each for each in found if each):
            return Refused(words)
        return refused(order.error or {"detail": f"The order is {order.status.value}."})

    def _http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(verify=self._settings.trust(), timeout=_TIMEOUT)


async def _pause(order: Order) -> None:
    asked = POLL_SECONDS if order.retry_after is None else order.retry_after
    await trio.sleep(min(max(asked, SHORTEST_POLL_SECONDS), LONGEST_POLL_SECONDS))
