"""Measuring: tasks, fair timing, records with provenance, and the runner that turns them into a results file."""
