"""Training: a recipe describes what to learn, a learner holds the weights, and a run trains them."""
