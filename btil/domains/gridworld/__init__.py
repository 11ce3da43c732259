"""Grid-world team tasks: Movers and Cleanup, the domains of the paper."""

# Their functions in `btil.domains`.
GRID_WORLDS = ("movers", "cleanup")
