"""In which numbers a backbone holds its weights, other than what one dtype says: quantised in a checkpoint, or while it is loaded."""
