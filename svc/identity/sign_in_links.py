"""Sign-in links: a billing system that has authenticated a customer signs their browser in. Shared by both services.

Invariants: a link that does not work gives the same answer whatever the reason, so that it reveals no owner; its
creator is recorded with the session that it starts.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from svc.identity.person_records import Person
from svc.identity.services import IdentityServices
from svc.identity.sign_in import LoginResult, SignedIn, note_sign_in, start_session
from svc.registry.operation import Context, Model
from svc.registry.shapes import LINE
from svc_actors.store import Transaction, Via
from svc_common.errors import ServiceError, forbidden

LinkToken = Annotated[str, Field(min_length=1, max_length=200, repr=False), LINE]


class SignInLink(Model):
    """A URL for the customer's browser, shown only once."""

    url: str
    expires_at: datetime


async def start_linked_session(
    context: Context[IdentityServices], tx: Transaction, person: Person, made_by: str
) -> LoginResult:
    """Start a session of `person` by a link that `made_by` created. No second factor is needed: the creator of links
    can act as any customer, and has authenticated this one."""
    await note_sign_in(tx, person.id)
    user = SignedIn(id=person.id, email=person.email, name=person.name, role=person.role)
    return await start_session(context, tx, user, via=Via.SESSION, details={"link_made_by": made_by})


def no_such_link() -> ServiceError:
    return forbidden(
        "This link no longer works: it was used, or has expired.",
        hint="Get a new one where it was created.",
    )
