"""What memories are trained and measured on: one task a file, each with its data, its batches and its metric."""
