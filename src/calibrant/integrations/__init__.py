"""Calibrated training and calibration logs inside other people's trainers.

`calibrant.integrations.lightning` needs ``lightning``, `calibrant.integrations.transformers` needs ``transformers`` and
``accelerate``: the extras of the same names. Import the one you use; neither is imported here.
`calibrant.integrations.trackers` sends metrics and figures to MLflow and Weights & Biases.
"""
