"""Configurations by chance, against the float64 definition and against one another.

Each module has one check and three tests of it: of rows, among which is what was found by chance,
of a few examples, the same in every run, and a slow one that draws others each time, for
`FUZZ_SECONDS` seconds.
"""
