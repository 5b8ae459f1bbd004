"""Joining a controller: the host generates a key, which never leaves it, and exchanges a one-time token and a signing
request for a certificate.

The controller's authority is fetched first, over an unverified connection, and accepted only if its SHA-256 is the
fingerprint that came with the token. All later connections are verified by this authority. Repeating an enrolment whose
answer was lost is safe: the key is kept until an answer arrives, and for the same token and key the controller answers
with the same node.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from uuid import UUID, uuid5

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import ValidationError

from svc_nodeagent.config import AgentFolder, Enrolment
from svc_nodeagent.faults import fault_point
from svc_nodeagent.protocol import CONTROLLER_NAME, EnrolRequest, EnrolResult

_TIMEOUT = httpx.Timeout(30.0)
_HOST_NAMESPACE = UUID("5d1f8e0a-2b0e-4d0c-9a57-3c1b7a0f6e11")


class EnrolmentRefused(Exception):  # noqa: N818 - named for what it says
    """The controller's authority does not match the fingerprint, or the controller did not accept the token. Nothing
    was changed on this host."""


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def signing_request(key: ec.EllipticCurvePrivateKey) -> str:
    """A signing request for this key, with an empty subject: the controller decides whom the certificate names."""
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()


def host_uuid() -> UUID:
    """This machine's permanent id: derived from /etc/machine-id, which itself stays private."""
    return uuid5(_HOST_NAMESPACE, Path("/etc/machine-id").read_text().strip())


async def enrol(
    folder: AgentFolder, *, controller: str, token: str, fingerprint: str, hostname: str, host: UUID
) -> Enrolment:
    """Exchange `token` at `controller` (a URL such as https://vm.example:8443) for this node's identity.

    `fingerprint` is the SHA-256 of the authority's certificate in hex. Raises `EnrolmentRefused`, or
    `httpx.TransportError` if there is no answer."""
    api = controller.rstrip("/") + "/api/v1"
    async with httpx.AsyncClient(verify=False, timeout=_TIMEOUT, trust_env=False) as untrusted:  # noqa: S501
        answer = await untrusted.get(f"{api}/nodes/authority")
    if answer.status_code != httpx.codes.OK:
        raise EnrolmentRefused(f"{controller} does not answer like a controller (HTTP {answer.status_code})")
    authority = answer.content
    if authority_fingerprint(authority) != fingerprint.replace(":", "").lower():
        raise EnrolmentRefused(
            f"the authority of {controller} does not have the fingerprint that came with the token: another server"
            " answers at this address, or the token was made by another controller"
        )
    context = ssl.create_default_context(cadata=authority.decode())
    async with httpx.AsyncClient(verify=context, timeout=_TIMEOUT, trust_env=False, base_url=api) as trusted:
        return await enrol_over(trusted, folder, token=token, hostname=hostname, host=host)


async def enrol_over(
    trusted: httpx.AsyncClient, folder: AgentFolder, *, token: str, hostname: str, host: UUID
) -> Enrolment:
    """As `enrol`, with a client that trusts the controller already; the client's base URL is the controller's API."""
    # QEMU's user must be able to pass through this folder to the disks. The secrets in the folder are readable by their
    # owner alone.
    folder.path.mkdir(parents=True, exist_ok=True, mode=0o711)
    key = _enrolment_key(folder)
    fault_point("enrol.key_made")
    request = EnrolRequest(token=token, csr=signing_request(key), hostname=hostname, host_uuid=host)
    answer = await trusted.post(
        "/nodes/enrol",
        content=request.model_dump_json(),
        headers={"Content-Type": "application/json"},
        extensions={"sni_hostname": CONTROLLER_NAME},
    )
    if not answer.is_success:
        raise EnrolmentRefused(refusal(answer))
    try:
        result = EnrolResult.model_validate_json(answer.content)
    except ValidationError as error:
        raise EnrolmentRefused("the controller answered, but not with an enrolment; are the versions alike?") from error
    fault_point("enrol.answered")
    folder.write(folder.authority, result.authority.encode())
    folder.write(folder.identity, private_pem(key) + result.certificate.encode())
    fault_point("enrol.identity_written")
    enrolment = Enrolment(node_id=result.node_id, gateway_host=result.gateway_host, gateway_port=result.gateway_port)
    folder.write(folder.enrolment, enrolment.model_dump_json(indent=2).encode())
    folder.enrolment_key.unlink(missing_ok=True)
    return enrolment


def authority_fingerprint(pem: bytes) -> str:
    try:
        return x509.load_pem_x509_certificate(pem).fingerprint(hashes.SHA256()).hex()
    except ValueError as error:
        raise EnrolmentRefused("what the controller sent as its authority is not a certificate") from error


def _enrolment_key(folder: AgentFolder) -> ec.EllipticCurvePrivateKey:
    try:
        kept = serialization.load_pem_private_key(folder.enrolment_key.read_bytes(), password=None)
    except FileNotFoundError:
        pass
    else:
        if isinstance(kept, ec.EllipticCurvePrivateKey):
            return kept
    key = new_key()
    folder.write(folder.enrolment_key, private_pem(key))
    return key


def refusal(answer: httpx.Response) -> str:
    """The controller's error message, if it sent one."""
    try:
        error = answer.json()["error"]
        hint = f" ({error['hint']})" if error.get("hint") else ""
        return f"{error['message']}{hint}"
    except (ValueError, KeyError, TypeError):
        return f"the controller refused the token (HTTP {answer.status_code})"
