"""`everlong bench`: measurements compared with their targets. Ratios are measured within one run."""
