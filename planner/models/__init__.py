"""Models as data: configurations read from files, and the operator graphs built from them."""
