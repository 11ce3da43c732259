"""What a fit gives: the one verb, the posterior, its tracker and its file."""
