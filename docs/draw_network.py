"""Draw the model as a dynamic Bayesian network: two steps of one team member."""

from pathlib import Path

FILE = Path(__file__).resolve().parent / "figures" / "network.svg"


def write() -> None:
    pass
