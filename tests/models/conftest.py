"""What all tests of models share."""

import torch

# The tensors here are tiny: more threads would only wait for each other.
torch.set_num_threads(1)
