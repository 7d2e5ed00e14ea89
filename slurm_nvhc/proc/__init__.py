"""Edges to the operating system: time budget, child processes, atomic files, syslog."""
