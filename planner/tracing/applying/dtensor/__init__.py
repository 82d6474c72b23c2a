"""A PyTorch module under the layouts of a plan: its operators, one by one, on ``DTensor``s."""
