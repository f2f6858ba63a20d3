"""Calibration metrics: functions of ``(probs, labels)``."""
