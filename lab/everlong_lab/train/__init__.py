"""Training: a recipe says what is learnt and how, a learner is what learns, a run does it."""
