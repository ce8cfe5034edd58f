"""Checkpoints that are quantised already: their `config.json` has a `quantization_config`.

transformers loads them, and computes with the quantised weights if the package for the method is installed. Without it, transformers may
refuse the checkpoint, dequantise the weights, or fail at the first token. So this module finds out before loading what will happen.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers.quantizers import AutoHfQuantizer
from transformers.utils import is_kernels_available

from everlong_models.errors import BackboneError

PACKAGES = {
    "awq": "gptqmodel", "bitsandbytes": "bitsandbytes", "compressed-tensors": "compressed-tensors", "fp8": "kernels",
    "gptq": "gptqmodel optimum", "mxfp4": "kernels", "torchao": "torchao",
}  # fmt: skip
"""The methods that are supported, and what must be installed to compute with their numbers."""


def method_of(config: Any) -> str | None:
    """Return the method by which the checkpoint with this config is quantised; None if it is not."""
    given = getattr(config, "quantization_config", None)
    return None if given is None else str(dict(given).get("quant_method"))


def prepare(config: Any, device: torch.device) -> tuple[Any, bool]:
    """Return a config to load the checkpoint with, and whether its weights stay quantised on `device`, rather than become floats.

    Raises `BackboneError`, which names the method, the package to install and the methods that are supported, for a checkpoint that cannot
    be loaded here.
    """
    config, method = copy.deepcopy(config), str(method_of(config))
    given = dict(config.quantization_config)
    on_cpu = device.type == "cpu"
    if method == "compressed-tensors":  # its own way is to make floats when the first token is computed
        given["use_optimized_inference"] = not on_cpu
    try:
        quantizer = AutoHfQuantizer.from_config(copy.deepcopy(given), pre_quantized=True)
        quantizer.validate_environment(device_map={"": str(device)}, weights_only=True)
    except (
        Exception
    ) as error:  # a missing package, device or field: transformers and the packages raise all kinds of errors
        raise _unsupported(method, str(error)) from error
    kept = not getattr(quantizer.quantization_config, "dequantize", False)
    if method == "compressed-tensors":
        kept = bool(quantizer.use_fp8_kernel)
    if method == "fp8" and on_cpu:  # its kernels are for GPUs
        kept = False
    if method == "fp8" and kept and not is_kernels_available():
        raise _unsupported(method, "its kernels are missing")
    if not kept and method == "compressed-tensors":
        given |= {"use_optimized_inference": False, "dequantize": True}
    elif not kept and torch.cuda.is_available():  # transformers decides by the machine, not by the device
        given["dequantize"] = True
    config.quantization_config = given
    return config, kept


def rows_mix(config: Any) -> bool:
    """Return whether a row's result depends on the other rows: LLM.int8() computes a column in floats if any row has a large number there."""
    given = getattr(config, "quantization_config", None) or {}
    fields = given if isinstance(given, dict) else given.to_dict()  # of a loaded model, it is an object
    return bool(fields.get("load_in_8bit")) and float(fields.get("llm_int8_threshold", 6.0)) > 0


def _unsupported(method: str, reason: str) -> BackboneError:
    install = f"; pip install {PACKAGES[method]}" if method in PACKAGES else ""
    return BackboneError(
        f"the weights are quantised by the method {method!r}: {' '.join(reason.split())}{install}. "
        f"Supported methods, where their packages are installed: {', '.join(PACKAGES)}"
    )
