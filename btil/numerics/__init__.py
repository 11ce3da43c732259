"""Arithmetic: special functions, precision, what JAX may promote."""
