"""The paper's experiments with one's own runs: its tables, the page of all results, and how long a reproduction takes."""
