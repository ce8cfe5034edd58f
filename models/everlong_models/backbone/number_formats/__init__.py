"""Number formats of weights, beyond a dtype: quantised in a checkpoint, or while a model is loaded."""
