"""The command line: one file per command, no logic beyond arguments and printing."""
