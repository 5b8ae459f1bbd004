"""Diagnosis of a site, and six repairs."""

from svc_actors.panel.repairs.diagnosis import CheckedPart, CheckState, Diagnosis
from svc_actors.panel.repairs.parts import Finding, Part, Parts, Repair

__all__ = ["CheckState", "CheckedPart", "Diagnosis", "Finding", "Part", "Parts", "Repair"]
