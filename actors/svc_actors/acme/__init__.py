"""A client of ACME certificate authorities (RFC 8555). It keeps no state and depends on no other part of the service.

    client = AcmeClient(http, "https://acme-v02.api.letsencrypt.org/directory", account_key)
    await client.register("ops@provider.example", terms_agreed=True)
    order = await client.new_order(["controller.example"])
    for url in order.authorizations:
        authorization = await client.authorization(url)
        challenge = authorization.challenge(ChallengeType.HTTP_01)
        ...                                      # answer /.well-known/acme-challenge/TOKEN with client.proof(token)
        await client.respond(challenge)
    ...                                          # ask `client.order(order.url)` until it is ready
    await client.finalise(order, signing_request(key, names))
    ...                                          # until it is valid
    chain = await client.certificate(order)

Every step may be repeated, and an unfinished order is found again by its URL. Errors are `AcmeError`s.

Why: docs/decisions/0016-own-acme-client.md.
"""

from svc_actors.acme.client import AcmeClient, ExternalAccount
from svc_actors.acme.errors import AcmeError, AuthorityAway, NamesRefused, RateLimited, Refused
from svc_actors.acme.keys import load_key, new_key, pem_of, signing_request
from svc_actors.acme.messages import Authorization, Challenge, ChallengeType, Order, RenewalInfo, Status, Window
from svc_actors.acme.proofs import CHALLENGE_PATH, Challenges, Http01, Proof

__all__ = [
    "CHALLENGE_PATH",
    "AcmeClient",
    "AcmeError",
    "AuthorityAway",
    "Authorization",
    "Challenge",
    "ChallengeType",
    "Challenges",
    "ExternalAccount",
    "Http01",
    "NamesRefused",
    "Order",
    "Proof",
    "RateLimited",
    "Refused",
    "RenewalInfo",
    "Status",
    "Window",
    "load_key",
    "new_key",
    "pem_of",
    "signing_request",
]
