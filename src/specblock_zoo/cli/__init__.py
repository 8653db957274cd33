"""The command line. Nothing below imports it."""
