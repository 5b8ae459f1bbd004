"""The actor of one certificate: the only place that decides about it and records it.

The actor decides what to do next (`step`). `Keeper` does it, which may take minutes, and reports the result
(`registered`, `ordered`, `issued`, `failed`). Each of these is one transaction. Invariants:

- keys are recorded before they are sent to the authority, and an order's URL as soon as it is known: after a crash at
  any point the same order continues with the same key, and a finalised certificate is fetched;
- at most one order per certificate is under way;
- a failed attempt is retried with a growing pause, never before the authority's Retry-After. Meanwhile an alert shows
  the authority's error, and the current certificate stays in use;
- where only some names were refused, the others get a certificate (`left_out`); an alert names those left out as long
  as the certificate is without them;
- a series of failed attempts, and a name that is left out, is reported through `IssuingServices.tell` once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import structlog
from cryptography import x509

from svc_actors.acme import AcmeError, AuthorityAway, ChallengeType, Refused, RenewalInfo, new_key, pem_of
from svc_actors.alerts import close_alert, raise_alert
from svc_actors.certificates import left_out
from svc_actors.certificates.chain import issuer_of, leaf_of, names_of
from svc_actors.certificates.left_out import CurrentCertificate, Refusal, RefusedName
from svc_actors.certificates.steps import (
    CertificateWithKey,
    IssuanceFailure,
    IssuingAttempt,
    RenewalCheck,
    Step,
    Tell,
    Wait,
)
from svc_actors.certificates.suggestions import ASKED_EVERY, certificate_id, due_by, pause_before_next
from svc_actors.certificates.timing import RENEWED_WITH_LEFT, pause_after, renewal_of
from svc_actors.runtime import Actor
from svc_actors.sealing import Sealer
from svc_actors.store import Caller, Database, Record, Target, Transaction, audit, service_itself
from svc_common.errors import ErrorCode, ServiceError, not_found

MOST_UNDER_WAY: Final = timedelta(hours=1)
"""How long an order may be under way before it is given up."""
AWAY_SO_OFTEN: Final = 8
"""Attempts in a row, about an hour, after which an unreachable authority is reported: it mostly comes back by itself,
and the current certificate is valid for weeks."""
_ACCOUNT_KEY: Final = "ACME account key"
_CERTIFICATE_KEY: Final = "ACME certificate key"

log = structlog.get_logger("svc.certificates")


async def _nobody(tx: Transaction, trouble: IssuanceFailure) -> None:
    return


@dataclass(frozen=True)
class IssuingServices:
    """Dependencies of the actors of certificates. `tell` is called in the transaction that records a failure: once for
    a series of failures, which ends when a certificate is issued or its configuration changes; and once for each name
    that is left out."""

    database: Database
    sealer: Sealer
    tell: Tell = _nobody


class IssuedCertificate(Actor):
    """The actor's key is the name of the certificate's purpose."""

    def __init__(self, issuing: IssuingServices) -> None:
        self._database = issuing.database
        self._sealer = issuing.sealer
        self._tell = issuing.tell

    async def want(
        self,
        directory: str,
        contact: str,
        names: Sequence[str],
        challenge: ChallengeType,
        not_sooner_than: timedelta | None = None,
    ) -> CertificateWithKey | None:
        """Maintain a certificate for these names from this authority, proven by `challenge`; returns the current one.
        If any of this has changed the next attempt is at once, or `not_sooner_than` after the last failed one."""

        async def work(tx: Transaction) -> Record:
            await self._want(tx, directory, contact, names, challenge, not_sooner_than)
            return await self._row(tx)

        return self._issued(await self._database.transact(work))

    async def order(
        self,
        caller: Caller,
        directory: str,
        contact: str,
        names: Sequence[str],
        challenge: ChallengeType,
        not_sooner_than: timedelta | None = None,
    ) -> None:
        """As `want`, and get a new certificate, or try again, now. Raises `rate_limited` and changes nothing if the
        last attempt failed, or was refused for some names, less than `not_sooner_than` ago."""

        async def work(tx: Transaction) -> None:
            await self._want(tx, directory, contact, names, challenge, not_sooner_than)
            await self._renew(tx, caller, not_sooner_than, {"challenge": challenge.value})

        await self._database.transact(work)

    async def current(self) -> CertificateWithKey | None:
        """The certificate issued last, if any."""
        row = await self._database.fetchrow("SELECT * FROM acme_certificates WHERE name = $1", self.key)
        return None if row is None else self._issued(row)

    async def step(self) -> Step:
        """Returns what to do now. If a new order is due, records its key."""

        async def work(tx: Transaction) -> Step:
            row = await self._row(tx)
            now = datetime.now(UTC)
            current = None if row["chain"] is None else certificate_id(row["chain"])
            if row["due_at"] > now:
                if current is None or row["order_key"] is not None or row["failures"]:
                    return Wait(row["due_at"])
                if row["renewal_info_at"] > now:
                    return Wait(min(row["due_at"], row["renewal_info_at"]))
                account = await tx.fetchone("SELECT * FROM acme_accounts WHERE directory = $1", row["directory"])
                key = self._sealer.unseal(account["sealed_key"], _ACCOUNT_KEY)
                return RenewalCheck(current, row["directory"], key)
            if row["order_began"] is not None and now - row["order_began"] > MOST_UNDER_WAY:
                await self._fail(tx, row, Refused("The authority did not decide about the order within an hour."))
                return Wait((await self._row(tx))["due_at"])
            if row["order_key"] is None:
                await tx.execute(
                    "UPDATE acme_certificates SET order_key = $2, order_began = now() WHERE name = $1",
                    self.key,
                    self._sealer.seal(pem_of(new_key()), _CERTIFICATE_KEY),
                )
                row = await self._row(tx)
            account = await tx.fetchone("SELECT * FROM acme_accounts WHERE directory = $1", row["directory"])
            return IssuingAttempt(
                tuple(left_out.ordered(row["names"], left_out.read(row["left_out"]))),
                ChallengeType(row["challenge"]),
                row["directory"],
                self._sealer.unseal(account["sealed_key"], _ACCOUNT_KEY),
                account["url"],
                self._sealer.unseal(row["order_key"], _CERTIFICATE_KEY),
                row["order_url"],
                current,
            )

        return await self._database.transact(work)

    async def renewal_suggested(self, certificate: str, suggested: RenewalInfo | None) -> None:
        """Record when the authority suggests renewing this certificate, and when to ask again."""

        async def work(tx: Transaction) -> None:
            row = await self._row(tx)
            if row["chain"] is None or certificate_id(row["chain"]) != certificate or row["order_key"] is not None:
                return
            due_at = row["due_at"] if suggested is None else due_by(suggested.window, row["due_at"], row["not_after"])
            # A window in the past announces a revocation, so the renewal is recorded as requested: it is not held back
            # for refused names (`left_out.waits`). Any other window only changes the time of the renewal.
            await tx.execute(
                """UPDATE acme_certificates
                   SET due_at = $2, renewal_info_at = now() + $3::interval, renewal_asked = renewal_asked OR $4
                   WHERE name = $1""",
                self.key,
                due_at,
                pause_before_next(None if suggested is None else suggested.retry_after),
                suggested is not None and suggested.window.end <= datetime.now(UTC) and due_at != row["due_at"],
            )
            if suggested is not None and due_at != row["due_at"]:
                why = suggested.explanation
                log.info("certificate.renewal_moved", certificate=self.key, due_at=due_at.isoformat(), explanation=why)

        await self._database.transact(work)

    async def registered(self, directory: str, url: str) -> None:
        await self._database.execute("UPDATE acme_accounts SET url = $2 WHERE directory = $1", directory, url)

    async def ordered(self, directory: str, url: str, caa_identities: Sequence[str]) -> None:
        """`caa_identities`: how CAA records name the authority, which may have changed since the last order."""

        async def work(tx: Transaction) -> None:
            await tx.execute("UPDATE acme_certificates SET order_url = $2 WHERE name = $1", self.key, url)
            await tx.execute(
                "UPDATE acme_accounts SET caa_identities = $2 WHERE directory = $1 AND caa_identities <> $2",
                directory,
                [each.lower() for each in caa_identities],
            )

        await self._database.transact(work)

    async def issued(self, chain: str) -> CertificateWithKey | None:
        """Record the authority's certificate for the current order. Returns None if the certificate is not for the
        order's key and names."""

        async def work(tx: Transaction) -> CertificateWithKey | None:
            row = await self._row(tx)
            key = self._sealer.unseal(row["order_key"], _CERTIFICATE_KEY)
            entries = left_out.read(row["left_out"])
            names = left_out.ordered(row["names"], entries)
            try:
                leaf = leaf_of(chain, key, names)
            except ValueError as error:
                await self._fail(tx, row, Refused(f"The certificate that the authority sent cannot be used: {error}"))
                return None
            await tx.execute(
                """UPDATE acme_certificates
                   SET chain = $2, sealed_key = order_key, issuer = $3, not_before = $4, not_after = $5, due_at = $6,
                       order_key = NULL, order_began = NULL, order_url = NULL,
                       failures = 0, last_error = NULL, failed_at = CASE WHEN $7 THEN failed_at END, told_at = NULL,
                       renewal_asked = false, renewal_info_at = now() + $8::interval
                   WHERE name = $1""",
                self.key,
                chain,
                issuer_of(leaf),
                leaf.not_valid_before_utc,
                leaf.not_valid_after_utc,
                renewal_of(leaf.not_valid_before_utc, leaf.not_valid_after_utc),
                len(names) < len(row["names"]),
                ASKED_EVERY,
            )
            told = {"names": names, "issuer": issuer_of(leaf), "not_after": leaf.not_valid_after_utc.isoformat()}
            target = Target("certificate", self.key, ", ".join(names))
            await audit.record(tx, service_itself("certificate.issue"), target, told)
            await self._leave_out(tx, await self._row(tx), [each for each in entries if each.out])
            log.info("certificate.issued", certificate=self.key, **told)
            return CertificateWithKey(chain, key)

        return await self._database.transact(work)

    async def failed(self, error: AcmeError, refusals: Sequence[Refusal] = (), key: bytes | None = None) -> None:
        """The attempt failed. An order that the authority refused is given up; after any other failure the same order
        continues. `refusals`: the names that the authority refused, if it refused only some: the next order is without
        these. `key`: the key of the order that the refusals belong to. If `want` has replaced that order, the refusals
        are dropped."""

        async def work(tx: Transaction) -> None:
            row = await self._row(tx)
            if refusals and not self._is_under_way(row, key):
                # The refusals are about an order that was replaced, not about the names of the new one. But the
                # authority counts the failed attempt.
                await tx.execute("UPDATE acme_certificates SET failed_at = now() WHERE name = $1", self.key)
                return
            if refusals:
                if await self._go_on_without(tx, row, refusals):
                    return
                entries = left_out.read(row["left_out"])
                await self._write(tx, left_out.refused_with_all(entries, refusals, datetime.now(UTC)))
            await self._fail(tx, row, error)

        await self._database.transact(work)

    async def try_again(self, names: Collection[str]) -> None:
        """Order a certificate that includes these names, which were left out and may be provable now. Does nothing
        while an order is under way, is due, or has failed and waits for its next attempt."""

        async def work(tx: Transaction) -> None:
            row = await self._row(tx)
            if row["order_key"] is not None or row["due_at"] <= datetime.now(UTC) or row["failures"]:
                return
            entries = [replace(each, out=each.name not in names) for each in left_out.read(row["left_out"])]
            await self._write(tx, entries)
            await tx.execute(
                "UPDATE acme_certificates SET due_at = greatest(now(), failed_at + $2::interval) WHERE name = $1",
                self.key,
                left_out.FIRST_PAUSE,
            )

        await self._database.transact(work)

    async def renew(self, caller: Caller) -> None:
        """Get a new certificate now, or try again now."""
        await self._database.transact(partial(self._renew, caller=caller))

    async def forget(self) -> None:
        """Stop renewing the certificate, and delete it with its keys."""

        async def work(tx: Transaction) -> None:
            await tx.execute("DELETE FROM acme_certificates WHERE name = $1", self.key)
            await close_alert(tx, alert_of(self.key))

        await self._database.transact(work)

    async def _want(
        self,
        tx: Transaction,
        directory: str,
        contact: str,
        names: Sequence[str],
        challenge: ChallengeType,
        not_sooner_than: timedelta | None,
    ) -> None:
        known = await tx.fetchval(
            """UPDATE acme_accounts SET contact = $2, url = CASE WHEN contact = $2 THEN url END
               WHERE directory = $1 RETURNING true""",
            directory,
            contact,
        )
        if not known:
            await tx.execute(
                """INSERT INTO acme_accounts (directory, sealed_key, contact) VALUES ($1, $2, $3)
                   ON CONFLICT (directory) DO NOTHING""",
                directory,
                self._sealer.seal(pem_of(new_key()), _ACCOUNT_KEY),
                contact,
            )
        changed = await tx.fetchval(
            """INSERT INTO acme_certificates (name, directory, names, challenge) VALUES ($1, $2, $3, $5)
               ON CONFLICT (name) DO UPDATE
               SET directory = excluded.directory, names = excluded.names, challenge = excluded.challenge,
                   due_at = greatest(now(), acme_certificates.failed_at + $4::interval), failures = 0, told_at = NULL,
                   order_key = NULL, order_began = NULL, order_url = NULL,
                   renewal_asked = acme_certificates.renewal_asked OR acme_certificates.directory <> excluded.directory
               WHERE (acme_certificates.directory, acme_certificates.names, acme_certificates.challenge)
                     IS DISTINCT FROM (excluded.directory, excluded.names, excluded.challenge)
               RETURNING left_out""",
            self.key,
            directory,
            list(names),
            not_sooner_than,
            challenge.value,
        )
        if changed:
            entries = [each for each in left_out.read(changed) if each.name in names]
            await self._write(tx, left_out.all_names(entries))

    async def _renew(
        self,
        tx: Transaction,
        caller: Caller,
        not_sooner_than: timedelta | None = None,
        details: Mapping[str, str] | None = None,
    ) -> None:
        row = await self._row(tx)
        if not_sooner_than is not None and row["failed_at"] is not None:
            again = row["failed_at"] + not_sooner_than - datetime.now(UTC)
            if again > timedelta():
                what = "failed" if row["last_error"] else "was refused for some names"
                why = row["last_error"] or " ".join(each.reason for each in left_out.read(row["left_out"]))
                raise ServiceError(
                    ErrorCode.RATE_LIMITED,
                    f"The last attempt {what} {not_sooner_than.total_seconds() / 60:.0f} minutes ago or less: "
                    f"{why or 'they are no longer names of this certificate.'}",
                    hint="Authorities limit failed attempts. Fix the cause, and try again later.",
                    details={"retry_after": int(again.total_seconds()) + 1},
                )
        await tx.execute("UPDATE acme_certificates SET due_at = now(), renewal_asked = true WHERE name = $1", self.key)
        if row["order_key"] is None:
            await self._write(tx, left_out.all_names(left_out.read(row["left_out"])))
        await audit.record(tx, caller, Target("certificate", self.key, ", ".join(row["names"])), details)

    def _is_under_way(self, row: Record, key: bytes | None) -> bool:
        return row["order_key"] is not None and self._sealer.unseal(row["order_key"], _CERTIFICATE_KEY) == key

    def _issued(self, row: Record) -> CertificateWithKey | None:
        if row["chain"] is None:
            return None
        return CertificateWithKey(row["chain"], self._sealer.unseal(row["sealed_key"], _CERTIFICATE_KEY))

    async def _row(self, tx: Transaction) -> Record:
        row = await tx.fetchrow("SELECT * FROM acme_certificates WHERE name = $1 FOR NO KEY UPDATE", self.key)
        if row is None:
            raise not_found("This certificate is no longer needed.")
        return row

    async def _go_on_without(self, tx: Transaction, row: Record, refusals: Sequence[Refusal]) -> bool:
        """Order a certificate for the names that were not refused, or keep the current one if it has them all. False
        if the attempt is to be repeated with all its names."""
        now = datetime.now(UTC)
        entries = left_out.refused(left_out.read(row["left_out"]), refusals, now)
        names = left_out.ordered(row["names"], entries)
        current = _current(row, now)
        if not names or left_out.waits(current, row["names"], names, row["failures"], requested=row["renewal_asked"]):
            return False
        await tx.execute(
            """UPDATE acme_certificates
               SET due_at = now(), failed_at = now(), order_key = NULL, order_began = NULL, order_url = NULL
               WHERE name = $1""",
            self.key,
        )
        # Otherwise every attempt for the refused names would issue another certificate for the same remaining names,
        # and authorities issue only a few of such duplicates a week.
        due = current is None or current.due or row["renewal_asked"]
        if current is not None and not due and current.names >= set(names):
            await tx.execute(
                "UPDATE acme_certificates SET due_at = $2, failures = 0, last_error = NULL WHERE name = $1",
                self.key,
                renewal_of(row["not_before"], row["not_after"]),
            )
            await self._leave_out(tx, await self._row(tx), [each for each in entries if each.out])
        else:
            await self._write(tx, entries)
        log.warning("certificate.names_refused", certificate=self.key, names=[each.name for each in refusals])
        return True

    async def _leave_out(self, tx: Transaction, row: Record, entries: Sequence[RefusedName]) -> None:
        """Record the names that are not in the certificate in use; the next order tries them again."""
        unreported = [each for each in entries if not each.reported]
        await self._write(tx, left_out.all_names(replace(each, reported=True) for each in entries))
        if not entries:
            await close_alert(tx, alert_of(self.key))
            return
        reasons = " ".join(each.reason for each in entries)
        words = f"The certificate for {row['names'][0]} does not have all of its {len(row['names'])} names. {reasons}"
        await raise_alert(tx, alert_of(self.key), words)
        if unreported:
            error = Refused(" ".join(each.reason for each in unreported))
            names = tuple(each.name for each in unreported)
            await self._tell(tx, IssuanceFailure(self.key, names, error, row["not_after"], row["due_at"], partly=True))

    async def _write(self, tx: Transaction, entries: Sequence[RefusedName]) -> None:
        await tx.execute(
            "UPDATE acme_certificates SET left_out = $2 WHERE name = $1", self.key, left_out.stored(entries)
        )

    async def _fail(self, tx: Transaction, row: Record, error: AcmeError) -> None:
        failures, now = row["failures"] + 1, datetime.now(UTC)
        due_at = now + pause_after(failures, error, row["not_after"] and row["not_after"] - now)
        gives_up = isinstance(error, Refused)
        await tx.execute(
            """UPDATE acme_certificates
               SET due_at = $2::timestamptz, failures = $3, last_error = $4, failed_at = now(),
                   order_key = CASE WHEN $5 THEN NULL ELSE order_key END,
                   order_began = CASE WHEN $5 OR order_key IS NULL THEN NULL ELSE $2::timestamptz END,
                   order_url = CASE WHEN $5 THEN NULL ELSE order_url END
               WHERE name = $1""",
            self.key,
            due_at,
            failures,
            str(error),
            gives_up,
        )
        if isinstance(error, Refused) and error.kind == "accountDoesNotExist":
            await tx.execute("UPDATE acme_accounts SET url = NULL WHERE directory = $1", row["directory"])
        there_is = (
            f"The current certificate expires on {row['not_after']:%Y-%m-%d %H:%M} UTC"
            if row["not_after"]
            else "There is no certificate yet"
        )
        message = (
            f"No certificate for {', '.join(row['names'])} from {urlsplit(row['directory']).hostname}: {error} "
            f"{there_is}; the next attempt is at {due_at:%Y-%m-%d %H:%M} UTC."
        )
        await raise_alert(tx, alert_of(self.key), message)
        if row["told_at"] is None and (not isinstance(error, AuthorityAway) or failures >= AWAY_SO_OFTEN):
            await tx.execute("UPDATE acme_certificates SET told_at = now() WHERE name = $1", self.key)
            await self._tell(tx, IssuanceFailure(self.key, tuple(row["names"]), error, row["not_after"], due_at))
        log.warning("certificate.not_issued", certificate=self.key, failures=failures, error=str(error))


def _current(row: Record, now: datetime) -> CurrentCertificate | None:
    if row["chain"] is None or row["not_after"] <= now:
        return None
    lifetime = row["not_after"] - row["not_before"]
    left = row["not_after"] - now
    names = names_of(x509.load_pem_x509_certificate(row["chain"].encode()))
    return CurrentCertificate(frozenset(names), left, lifetime, due=left <= lifetime * RENEWED_WITH_LEFT)


def alert_of(name: str) -> str:
    return f"certificate-renewal:{name}"
