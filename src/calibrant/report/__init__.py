"""Figures and pages, drawn from records. Nothing here trains or fits."""
