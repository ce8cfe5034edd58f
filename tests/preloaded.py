"""Imports and prepares once, in the process that servers are forked from, what each server would otherwise import at its start."""

import gc
from importlib import import_module

from numba.core.registry import cpu_target

# What `everlong serve` imports, some of it only when it needs it.
for name in (
    "everlong_models.size",
    "everlong_server.cli.serve",
    "everlong_server.process.listening",
    "everlong_server.process.loading",
    "everlong_server.process.served_model",
    "everlong_server.process.serving",
    "tests.process",
    "transformers.models.llama.modeling_llama",
):
    import_module(name)

# numba imports its own functions when it loads the first kernel, which takes half as long as the rest of a start.
cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()

# A fork's garbage collector does not look at these objects, so it copies none of their pages.
gc.collect()
gc.freeze()
