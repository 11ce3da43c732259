"""The paper's tables and figures, made again: `btil.analysis.reproduce`, `btil reproduce`.

`targets` says what each table ran and what the paper prints, `experiments` what one trial does,
`workspace` on which data, `trials` runs, saves and resumes, `paper_tables` and `figures` show.
"""

from btil.analysis.reproduction.reproducing import Reproduction, reproduce
from btil.analysis.reproduction.targets import TARGETS

__all__ = ["TARGETS", "Reproduction", "reproduce"]
