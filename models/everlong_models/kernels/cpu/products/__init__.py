"""Dot products in registers, by the type of the activations: LLVM instructions that the kernels inline."""
