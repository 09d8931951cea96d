"""The command line of `repack`, and what both commands share: arguments, the console, reports."""
