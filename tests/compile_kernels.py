"""Compiles the kernels that most servers need. With several workers, pytest runs this once, while they collect their tests."""

from everlong_models.kernels.cpu import decode_step, matrix_product, prefill, quantise, sampling_kernel
from everlong_models.kernels.cpu.thread_pool import prepare

if __name__ == "__main__":
    prepare(decode_step.STEP.run, matrix_product.multiply, sampling_kernel.sample)
    prepare(prefill.linear, prefill.norm, prefill.rotate, prefill.attend, quantise.quantise_groups)
