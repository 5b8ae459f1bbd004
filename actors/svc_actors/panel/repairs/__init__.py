"""Diagnosis of a site, and six repairs."""

from svc_actors.panel.repairs.diagnosis import Checked, CheckState, Diagnosis
from svc_actors.panel.repairs.parts import Finding, Part, Parts, Repair

__all__ = ["CheckState", "Checked", "Diagnosis", "Finding", "Part", "Parts", "Repair"]
