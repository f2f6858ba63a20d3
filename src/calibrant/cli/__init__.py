"""The command line: parse, call, write. The only room that prints and that decides an exit code."""
