"""Run llama.cpp's server from xllamacpp: `python -m everlong_lab.benchmarks.llama FILE PORT POSITIONS THREADS [SLOTS]`. SLOTS: a folder for saved slots."""

from __future__ import annotations

import signal
import sys

import xllamacpp


def main(file: str, port: str, positions: str, threads: str, slots: str = "") -> None:
    params = xllamacpp.CommonParams()
    params.model.path = file
    params.port = int(port)
    params.n_ctx = int(positions)
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    params.slot_save_path = f"{slots}/" if slots else ""
    params.endpoint_slots = bool(slots)
    server = xllamacpp.Server(params)  # serves on threads of its own until it is deleted
    signal.pause()
    del server


if __name__ == "__main__":
    main(*sys.argv[1:])
