"""`everlong bench NAME`: measurements that are held against their targets. Ratios, each measured in one run."""
