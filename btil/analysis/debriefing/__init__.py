"""A debrief of a team from its recordings, for people who know teams."""

from btil.analysis.debriefing.findings import Findings
from btil.analysis.debriefing.page import Debrief, debrief

__all__ = ["Debrief", "Findings", "debrief"]
