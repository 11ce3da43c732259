"""The command `btil`: what the package does, from a shell."""

# Each of these adds its commands.
from btil.cli import learning, suggesting, comparing, reporting, making, playing  # noqa: F401, I001
from btil.cli.app import app, main

__all__ = ["app", "main"]
