"""Everything that must hold."""

import os
import runpy
from pathlib import Path

# Before torch is imported. As many tests run at once as there are cores: more threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

# Before anything imports Triton: where it has no GPU to compile for, its kernels are interpreted.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Before the client is imported: makes the blocking client from the asyncio client as it is now. A build does so, too.
runpy.run_path(str(Path(__file__).parents[1] / "clients" / "python" / "make_sync.py"), run_name="__main__")
