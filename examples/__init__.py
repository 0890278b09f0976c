"""Example programs, each run from the root of the repository as `python -m examples.NAME`."""
