"""Programs as frameworks write them: JAX functions and PyTorch modules, each operator as loops over indices."""
