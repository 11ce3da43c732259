"""A debrief of a team from its recordings, for people who know teams."""

from btil.analysis.debriefing.debrief_page import Debrief, debrief
from btil.analysis.debriefing.findings import Findings

__all__ = ["Debrief", "Findings", "debrief"]
