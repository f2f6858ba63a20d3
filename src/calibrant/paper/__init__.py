"""The paper's experiments with your own runs: its tables, and the page of all results."""
