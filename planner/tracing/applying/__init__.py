"""Layouts put into effect on the JAX function that they were chosen for."""
