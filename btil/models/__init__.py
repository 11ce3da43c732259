"""What we believe of a team: tables, the team model, its NumPyro form."""
