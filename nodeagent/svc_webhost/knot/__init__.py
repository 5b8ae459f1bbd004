"""Knot DNS as the panel runs it: with its own configuration and folder; zones are changed over the control socket."""

from svc_webhost.knot.configuration import KnotSettings
from svc_webhost.knot.control import KnotAway, KnotError
from svc_webhost.knot.data import RecordData, RecordType
from svc_webhost.knot.server import KnotServer, NameServer, ZoneOutcome
from svc_webhost.knot.zone import Authority, ResourceRecord, ServedZone, Zone

__all__ = [
    "Authority",
    "KnotAway",
    "KnotError",
    "KnotServer",
    "KnotSettings",
    "NameServer",
    "RecordData",
    "RecordType",
    "ResourceRecord",
    "ServedZone",
    "Zone",
    "ZoneOutcome",
]
