"""The metrics of the library: one file for each, or for the variants of one idea. None of them loads torch."""
