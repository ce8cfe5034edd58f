"""Everything that must hold."""

import os

# Before torch is imported. As many tests run at once as there are cores: more threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

# Before anything imports Triton: where it has no GPU to compile for, its kernels are interpreted.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
