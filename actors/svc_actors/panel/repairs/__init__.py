"""What is wrong with a site, and the six repairs that mend it."""

from svc_actors.panel.repairs.diagnosis import Checked, CheckState, Diagnosis
from svc_actors.panel.repairs.parts import Finding, Part, Parts, Repair

__all__ = ["CheckState", "Checked", "Diagnosis", "Finding", "Part", "Parts", "Repair"]
