"""The paper's experiments with one's own runs: its tables, and the page of all results."""
