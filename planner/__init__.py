"""Meshwright: how to train a model on a cluster, answered before an accelerator is touched."""
