"""Everything that must hold."""

import os

# Before torch is imported. As many tests run at once as there are cores: more threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
