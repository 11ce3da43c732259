"""Bayesian Team Imitation Learner."""
