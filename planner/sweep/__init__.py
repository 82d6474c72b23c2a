"""Many questions at once: sweeps over any inputs, what they cost, and the cluster that a deadline needs."""
