"""`everlong eval`: one experiment a file, each with a function that returns figures and one that plots them."""
