"""The frames of the control channel. First those from controller to agent."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field, TypeAdapter

from svc_nodeagent.protocol.operations import NodeOperation
from svc_nodeagent.protocol.results import Capacity, OperationResult
from svc_nodeagent.protocol.values import (
    MANY,
    MOST_CALLS,
    DomainState,
    FailureCode,
    Id,
    Moment,
    Name,
    Pem,
    Seconds,
    StateCause,
    Text,
    Version,
    Wire,
)
from svc_nodeagent.protocol.versions import Since


class Welcome(Wire):
    """Answer to `Hello`. The agent sends a heartbeat at least every `heartbeat_seconds`, and considers the connection
    dead after three of these intervals without an answer. `protocol` is the version agreed on, `controller` the
    release."""

    frame: Literal["welcome"] = "welcome"
    protocol: Version
    node_id: UUID
    heartbeat_seconds: Seconds
    controller_time: Moment
    controller: Annotated[Name | None, Since(4)] = None


class Request(Wire):
    """`request_id` identifies the request to the controller that caused the operation; the agent's log contains it.
    `traceparent` (W3C Trace Context) is the span of the operation if its trace is recorded; the result then has
    `calls`."""

    frame: Literal["request"] = "request"
    id: Id
    operation: NodeOperation
    timeout_seconds: Seconds
    request_id: Annotated[Name | None, Since(4)] = None
    traceparent: Annotated[Name | None, Since(4)] = None


class Cancel(Wire):
    """Cancel the operation if that is still possible. Its outcome, whether it was cancelled or not, is reported as
    usual."""

    frame: Literal["cancel"] = "cancel"
    id: Id


class Acknowledge(Wire):
    """The controller has stored these outcomes; the journal may forget them."""

    frame: Literal["acknowledge"] = "acknowledge"
    ids: Annotated[tuple[Id, ...], Field(max_length=MANY)]


class Renewed(Wire):
    """The new certificate, PEM, with the chain of the controller's authority."""

    frame: Literal["renewed"] = "renewed"
    certificate: Pem
    authority: Pem


DownFrame = Annotated[Welcome | Request | Cancel | Acknowledge | Renewed, Field(discriminator="frame")]


# Agent to controller


class Hello(Wire):
    """First frame of a connection. `protocol` is the version agreed on. `release`: the release that the agent runs, if
    it can replace itself. `unacknowledged`: the operations that are still in the journal, running or ended."""

    frame: Literal["hello"] = "hello"
    protocol: Version
    agent_version: Name
    boot_id: Name
    release: Annotated[Name | None, Since(4)] = None
    unacknowledged: Annotated[tuple[Id, ...], Field(max_length=MANY)] = ()


class Heartbeat(Wire):
    frame: Literal["heartbeat"] = "heartbeat"
    at: Moment
    capacity: Capacity


class Progress(Wire):
    """`percent` of the operation as a whole; `message` is for people and becomes a line of the task's log."""

    frame: Literal["progress"] = "progress"
    id: Id
    percent: int = Field(ge=0, le=100)
    message: Text


class Succeeded(Wire):
    outcome: Literal["succeeded"] = "succeeded"
    result: OperationResult


class Failed(Wire):
    outcome: Literal["failed"] = "failed"
    code: FailureCode
    message: Text
    hint: Text | None = None


Outcome = Annotated[Succeeded | Failed, Field(discriminator="outcome")]


class HostCall(Wire):
    """A call that the agent made on the host: of libvirt, a program, a download. `at` is by the node's clock. `error`
    names what went wrong, in a word."""

    name: Name
    at: Moment
    seconds: float = Field(ge=0, le=1e6)
    error: Name | None = None


class Result(Wire):
    """The outcome of an operation, sent again on every new connection until acknowledged. `calls`: its first calls on
    the host, if the request had a `traceparent`."""

    frame: Literal["result"] = "result"
    id: Id
    outcome: Outcome
    calls: Annotated[tuple[HostCall, ...], Since(4), Field(max_length=MOST_CALLS)] = ()


class DomainChanged(Wire):
    """The host saw a guest of ours change state, for any reason."""

    frame: Literal["domain_changed"] = "domain_changed"
    vm_id: UUID
    state: DomainState
    reason: Text
    cause: StateCause | None = None
    at: Moment


class Renewal(Wire):
    """A certificate signing request, PEM, sent at two thirds of the lifetime over the open channel."""

    frame: Literal["renewal"] = "renewal"
    csr: Pem


UpFrame = Annotated[Hello | Heartbeat | Progress | Result | DomainChanged | Renewal, Field(discriminator="frame")]

DOWN: TypeAdapter[DownFrame] = TypeAdapter(DownFrame)
UP: TypeAdapter[UpFrame] = TypeAdapter(UpFrame)
