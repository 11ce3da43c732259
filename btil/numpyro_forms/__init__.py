"""Models as NumPyro sees them: the team's network in two forms, and models of one's own."""
