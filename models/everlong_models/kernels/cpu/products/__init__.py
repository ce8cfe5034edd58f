"""LLVM code for dot products that the kernels inline. One module for each type of activation."""
