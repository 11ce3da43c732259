"""What we make of it: metrics, comparison, plots, reports."""
