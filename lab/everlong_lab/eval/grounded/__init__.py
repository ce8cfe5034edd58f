"""What `everlong eval` measures: one experiment a file, each a function that returns figures and one that draws them."""
