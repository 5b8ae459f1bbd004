"""The signature, against vectors of others."""

from __future__ import annotations

import re

import pytest
import stripe

from svc_actors.webhooks.payload import digest, new_webhook_secret, signature_header

BODY = '{"id":"evt","event":"site.created","name":"bücher"}'.encode()


def test_the_primitive_is_the_one_of_github() -> None:
    # docs.github.com, "Validating webhook deliveries".
    assert digest("It's a Secret to Everybody", b"Hello, World!") == (
        "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    )


def test_what_is_signed_is_the_timestamp_a_dot_and_the_body() -> None:
    header = signature_header("whsec_test", 1_790_000_000, BODY)

    assert header == f"t=1790000000,v1={digest('whsec_test', b'1790000000.' + BODY)}"


def test_stripes_library_takes_it_when_the_secret_is_passed_whole() -> None:
    secret = new_webhook_secret()
    header = signature_header(secret, 1_790_000_000, BODY)

    stripe.WebhookSignature.verify_header(BODY.decode(), header, secret, tolerance=None)

    for body, other in ((BODY + b" ", secret), (BODY, new_webhook_secret()), (BODY, secret.removeprefix("whsec_"))):
        with pytest.raises(stripe.SignatureVerificationError):
            stripe.WebhookSignature.verify_header(body.decode(), header, other)


def test_a_secret_says_what_it_is_and_cannot_be_guessed() -> None:
    made = {new_webhook_secret() for _ in range(100)}

    assert len(made) == 100
    assert all(re.fullmatch(r"whsec_[A-Za-z0-9_-]{43}", secret) for secret in made)
