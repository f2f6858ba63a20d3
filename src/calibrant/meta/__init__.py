"""Meta-regularization: training losses that learn, on held-out data, how to keep a network calibrated."""
