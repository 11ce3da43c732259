"""Grid-world team tasks: Movers and Cleanup, the domains of the paper."""
