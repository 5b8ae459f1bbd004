"""Maintains one certificate: executes the steps that its actor decides, and installs the result where it is served.

Each step is one exchange with the authority and may be repeated. Only what the actor has recorded counts, so this loop
may end at any point, with its process or by an error, and start again.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

import httpx
import trio

from svc_actors.acme import (
    AcmeClient,
    AcmeError,
    Authorization,
    Challenges,
    ChallengeType,
    NamesRefused,
    Order,
    Proof,
    RateLimited,
    Refused,
    Status,
    load_key,
    signing_request,
)
from svc_actors.acme.errors import refused
from svc_actors.certificates.issuing import IssuedCertificate
from svc_actors.certificates.left_out import Refusal
from svc_actors.certificates.settings import AcmeSettings
from svc_actors.certificates.steps import CertificateWithKey, IssuingAttempt, RenewalCheck, Step, Wait
from svc_actors.runtime import ActorSystem, Ref
from svc_actors.store import Caller

POLL_SECONDS: Final = 2.0
"""How often an order is polled if the authority does not say."""
SHORTEST_POLL_SECONDS: Final = 0.1
LONGEST_POLL_SECONDS: Final = 60.0
LONGEST_SLEEP_SECONDS: Final = 3600.0
"""The machine's clock may be set while the loop sleeps, so it looks again after at most this long."""
_TIMEOUT: Final = 20.0
_LOOKS_AT_OTHERS: Final = 10
"""How many times, at most, the authorizations of a refused order are polled while the authority has not decided about
all of its names."""

Install = Callable[[CertificateWithKey], Awaitable[None]]
"""Installs a certificate where it is served from; must be idempotent."""
Explain = Callable[[ChallengeType, str, AcmeError], Awaitable[Refusal]]
"""Says why the authority refused a name that is proven this way."""
OpenHttp = Callable[[], httpx.AsyncClient]
ChallengesT = TypeVar("ChallengesT", bound=Challenges)


class Keeper(Generic[ChallengesT]):
    """`name` identifies the certificate, `names` are its host names. With `explain`, the names that the authority
    refuses are left out, and the others get the certificate. `open_http` is for tests."""

    def __init__(
        self,
        actors: ActorSystem,
        name: str,
        names: Sequence[str],
        settings: AcmeSettings,
        challenges: ChallengesT,
        install: Install,
        *,
        explain: Explain | None = None,
        open_http: OpenHttp | None = None,
    ) -> None:
        self._explain = explain
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
        if isinstance(step, RenewalCheck):
            await self._check(step)
            step = await self._actor.ask(IssuedCertificate.step)
        # The type of challenge in the configuration may have changed meanwhile: proofs of another type are shown by
        # another keeper, at another place.
        while isinstance(step, IssuingAttempt) and step.challenge is self.challenges.type:
            try:
                step = await self._order(step)
            finally:
                await self.challenges.withdraw(self._name)
        return step.until if isinstance(step, Wait) else datetime.now(UTC)

    async def _check(self, check: RenewalCheck) -> None:
        """Ask the authority when to renew the certificate. If the authority does not answer, no failure is recorded:
        the certificate's lifetime decides, as for an authority that suggests nothing."""
        suggested = None
        async with self._open_http() as http:
            client = AcmeClient(http, check.directory, load_key(check.account_key))
            with suppress(AcmeError):
                suggested = await client.renewal_info(check.certificate)
        await self._actor.ask(IssuedCertificate.renewal_suggested, check.certificate, suggested)

    async def _order(self, work: IssuingAttempt) -> Step:
        """Work on an order until it has ended. If the authority refused some of its names, an order for the other names
        follows."""
        step: Step = work
        try:
            async with self._open_http() as http:
                client = AcmeClient(http, work.directory, load_key(work.account_key), work.account_url)
                while isinstance(step, IssuingAttempt) and step.challenge is self.challenges.type:
                    work = step
                    await self._act(client, step)
                    step = await self._actor.ask(IssuedCertificate.step)
                return step
        except AcmeError as error:
            await self._failed(work, _by_name(error, work.names))
        return await self._actor.ask(IssuedCertificate.step)

    async def _failed(self, work: IssuingAttempt, error: AcmeError) -> None:
        refusals: list[Refusal] = []
        if self._explain is not None and isinstance(error, NamesRefused):
            explained = await _explained(self._explain, work.challenge, error.names)
            refusals = [replace(each, retry_after=error.retry_after) for each in explained]
            error = Refused(" ".join(each.reason for each in refusals), retry_after=error.retry_after)
        await self._actor.ask(IssuedCertificate.failed, error, refusals, work.key)

    async def _act(self, client: AcmeClient, work: IssuingAttempt) -> None:
        """One exchange with the authority. Raises `AcmeError`."""
        if work.account_url is None:
            settings = self._settings
            url = await client.register(
                settings.contact, terms_agreed=settings.terms_agreed, external=settings.external_account()
            )
            await self._actor.ask(IssuedCertificate.registered, work.directory, url)
        elif work.order_url is None:
            order = await client.new_order(work.names, work.replaces)
            identities = (await client.directory()).meta.caa_identities
            await self._actor.ask(IssuedCertificate.ordered, work.directory, order.url, identities)
        else:
            await self._further(client, work, await client.order(work.order_url))

    async def _further(self, client: AcmeClient, work: IssuingAttempt, order: Order) -> None:
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
                refused_name = Refused(f"The authority does not offer {wanted} for {name}, only {offered}.")
                raise NamesRefused(str(refused_name), {authorization.name: refused_name})
            proofs.append(Proof(name, challenge.token, client.proof(challenge.token)))
            if challenge.status is Status.PENDING:
                unheard.append(challenge)
        await self.challenges.offer(self._name, proofs)
        for challenge in unheard:
            await client.respond(challenge)

    async def _problem(self, client: AcmeClient, order: Order) -> AcmeError:
        """Why an order has failed: the errors of its authorizations say more than the error of the order."""
        decided = await self._decided(client, order)
        if problems := {each.name: each.problem for each in decided if each.problem is not None}:
            return NamesRefused(" ".join(f"{name}: {problem}" for name, problem in problems.items()), problems)
        return refused(order.error or {"detail": f"The order is {order.status.value}."})

    async def _decided(self, client: AcmeClient, order: Order) -> list[Authorization]:
        """The authorizations of a refused order, once all are decided. The first refusal ends the order while the
        authority still checks other names. If each refused name were found only by one more order, that could exhaust
        the number of orders that an account may have."""
        for _ in range(_LOOKS_AT_OTHERS):
            found = [await client.authorization(url) for url in order.authorizations]
            if not any(each.status is Status.PENDING for each in found):
                break
            await _pause(order)
        return found

    def _http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(verify=self._settings.trust(), timeout=_TIMEOUT)


def _by_name(error: AcmeError, names: Sequence[str]) -> AcmeError:
    """The error, turned into an error about some of the names if it is one. Some authorities that refuse a single name
    of an order say only in their text which name it is."""
    if isinstance(error, NamesRefused):
        own = {name: problem for name, problem in error.names.items() if name in names}
        if not own:
            return Refused(str(error), retry_after=error.retry_after)
        return NamesRefused(str(error), own, retry_after=error.retry_after)
    # A rate limit may count the orders for a whole domain, and its error then names the domain only. The limit applies
    # to all names below the domain.
    if isinstance(error, Refused) or (isinstance(error, RateLimited) and "already issued" not in str(error)):
        named = [name for name in names if re.search(rf"(?<![\w.*-]){re.escape(name)}(?!\.?[\w-])", str(error))]
        if isinstance(error, RateLimited):
            named = [name for name in named if not any(each.endswith(f".{name}") for each in names)]
        if named:
            return NamesRefused(str(error), dict.fromkeys(named, error), retry_after=error.retry_after)
    return error


async def _explained(explain: Explain, challenge: ChallengeType, problems: Mapping[str, AcmeError]) -> list[Refusal]:
    """The explanations, in the order of the problems. All are looked up at the same time, since a name server that does
    not answer takes seconds."""
    found: dict[str, Refusal] = {}

    async def one(name: str, problem: AcmeError) -> None:
        found[name] = await explain(challenge, name, problem)

    async with trio.open_nursery() as nursery:
        for name, problem in problems.items():
            nursery.start_soon(one, name, problem)
    return [found[name] for name in problems]


async def _pause(order: Order) -> None:
    asked = POLL_SECONDS if order.retry_after is None else order.retry_after
    await trio.sleep(min(max(asked, SHORTEST_POLL_SECONDS), LONGEST_POLL_SECONDS))
