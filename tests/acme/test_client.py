"""The client against an authority that is in memory, and errs on purpose."""

from __future__ import annotations

import email.utils
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from cryptography import x509

from svc_actors.acme import (
    AcmeClient,
    AuthorityAway,
    ChallengeType,
    ExternalAccount,
    Http01,
    Order,
    Proof,
    RateLimited,
    Refused,
    Status,
    new_key,
    signing_request,
)
from tests.support.acme_authority import DIRECTORY, Answer, FakeAuthority, problem, thumbprint


@pytest.fixture
def authority() -> FakeAuthority:
    return FakeAuthority()


@pytest.fixture
async def client(authority: FakeAuthority) -> AsyncIterator[AcmeClient]:
    async with authority.client() as http:
        client = AcmeClient(http, DIRECTORY, new_key())
        await client.register("ops@provider.example", terms_agreed=True)
        yield client


async def prove(client: AcmeClient, order: Order) -> None:
    for url in order.authorizations:
        challenge = (await client.authorization(url)).challenge(ChallengeType.HTTP_01)
        assert challenge is not None
        await client.respond(challenge)


async def test_a_certificate_for_several_names_is_for_the_key_that_asked(client: AcmeClient) -> None:
    names, key = ["controller.example", "www.controller.example"], new_key()

    order = await client.new_order(names)
    await prove(client, order)
    done = await client.finalise(await client.order(order.url), signing_request(key, names))
    leaf, root = x509.load_pem_x509_certificates((await client.certificate(done)).encode())

    assert done.status is Status.VALID
    assert leaf.public_key() == key.public_key()
    assert (
        leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
        == names
    )
    leaf.verify_directly_issued_by(root)


async def test_a_proof_names_the_account_by_its_key(authority: FakeAuthority, client: AcmeClient) -> None:
    [account] = authority.accounts.values()

    assert client.proof("a-token") == f"a-token.{thumbprint(account['jwk'])}"


async def test_a_nonce_that_is_not_taken_is_replaced_however_often_that_happens(
    authority: FakeAuthority, client: AcmeClient
) -> None:
    authority.fail("neworder", *[problem("badNonce", "Not this one.")] * 5)

    order = await client.new_order(["controller.example"])

    assert order.status is Status.PENDING
    assert authority.count("neworder") == 6


async def test_an_account_is_found_again_by_its_key_and_told_the_new_address(authority: FakeAuthority) -> None:
    key = new_key()
    async with authority.client() as http:
        first = await AcmeClient(http, DIRECTORY, key).register("ada@provider.example", terms_agreed=True)

        again = await AcmeClient(http, DIRECTORY, key).register("ops@provider.example", terms_agreed=True)

    assert again == first
    assert [account["contact"] for account in authority.accounts.values()] == [["mailto:ops@provider.example"]]


async def test_an_authority_that_knows_its_customers_is_shown_which_one_this_is(authority: FakeAuthority) -> None:
    authority.external["customer-1"] = b"a key that the authority gave out"
    async with authority.client() as http:
        client = AcmeClient(http, DIRECTORY, new_key())
        with pytest.raises(Refused, match="An account of ours is needed") as refused:
            await client.register("ops@provider.example", terms_agreed=True)

        external = ExternalAccount("customer-1", b"a key that the authority gave out")
        await client.register("ops@provider.example", terms_agreed=True, external=external)

    assert refused.value.kind == "externalAccountRequired"
    assert len(authority.accounts) == 1
    assert "gave out" not in repr(external)


@pytest.mark.parametrize("as_date", [False, True])
async def test_a_rate_limit_says_when_to_come_back(authority: FakeAuthority, client: AcmeClient, as_date: bool) -> None:
    given = email.utils.formatdate(time.time() + 3600, usegmt=True) if as_date else "3600"
    authority.fail("neworder", problem("rateLimited", "Too many certificates this week.", 429, retry_after=given))

    with pytest.raises(RateLimited, match="Too many certificates this week") as limited:
        await client.new_order(["controller.example"])

    assert limited.value.retry_after == pytest.approx(3600, abs=30)


async def test_a_refusal_is_told_in_the_authoritys_words_with_what_it_says_of_each_name(
    authority: FakeAuthority, client: AcmeClient
) -> None:
    parts = [{"identifier": {"type": "dns", "value": "b.example"}, "detail": "CAA forbids it."}]
    body = {"type": "urn:ietf:params:acme:error:compound", "detail": "Some names were refused.", "subproblems": parts}
    authority.fail("neworder", Answer(403, body))

    with pytest.raises(Refused) as refused:
        await client.new_order(["a.example", "b.example"])

    assert str(refused.value) == "Some names were refused. b.example: CAA forbids it."


async def test_a_failed_proof_says_what_the_authority_saw(authority: FakeAuthority, client: AcmeClient) -> None:
    seen = {"type": "urn:ietf:params:acme:error:connection", "detail": "Connection refused by 192.0.2.7:80."}
    authority.verdict = lambda token, name: seen
    order = await client.new_order(["controller.example"])

    await prove(client, order)

    assert (await client.order(order.url)).status is Status.INVALID
    [url] = order.authorizations
    assert str((await client.authorization(url)).problem) == "Connection refused by 192.0.2.7:80."


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Answer(0, raises=httpx.ConnectError), "authority.test cannot be reached"),
        (Answer(0, raises=httpx.ReadTimeout), "authority.test cannot be reached"),
        (Answer(503), "is temporarily unavailable: HTTP status 503"),
        (problem("serverInternal", "Our database is away.", 500), "Our database is away."),
        (Answer(200, {"status": "pending"}), "did not answer as an ACME authority does"),
    ],
)
async def test_an_authority_that_is_away_or_talks_nonsense_is_told_from_a_refusal(
    authority: FakeAuthority, client: AcmeClient, fault: Answer, words: str
) -> None:
    order = await client.new_order(["controller.example"])
    authority.fail("order", fault)

    with pytest.raises(AuthorityAway, match=words):
        await client.order(order.url)


async def test_a_directory_that_is_none_is_told() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text="<html>It works!</html>"))
    async with httpx.AsyncClient(transport=transport) as http:
        with pytest.raises(AuthorityAway, match="did not answer as an ACME authority does"):
            await AcmeClient(http, DIRECTORY, new_key()).directory()


async def test_an_answer_to_a_challenge_is_given_while_it_is_under_way() -> None:
    challenges = Http01()
    await challenges.offer("service", [Proof("one.example", "token", "token.thumbprint")])
    await challenges.offer("site", [Proof("two.example", "other", "other.thumbprint")])

    before = challenges.proof("token"), challenges.proof("other"), challenges.proof("unknown")
    await challenges.withdraw("service")

    assert before == ("token.thumbprint", "other.thumbprint", None)
    assert (challenges.proof("token"), challenges.proof("other")) == (None, "other.thumbprint")
