"""Layouts put into effect on the JAX function, or the PyTorch module (``dtensor``), that they were chosen for."""
