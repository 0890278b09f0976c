"""Configurations by chance, against the float64 definition and against one another.

Each module has one check and two tests of it: a few examples, the same in every run, and a slow
test that draws others each time, for `FUZZ_SECONDS` seconds. What was found by it is kept as an
`@example` of the first.
"""
