"""Layouts for every array of a program: what can be chosen, what it costs, and the choice that is proven best."""
