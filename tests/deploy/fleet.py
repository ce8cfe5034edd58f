"""Several real servers for the price of one: `python -m tests.deploy.fleet` forks one for each list of flags, behind the imports.

With a read-only root, as docker-compose.yml has it: they can write to one folder, and nowhere else. What decodes is not
stored there, so it is compiled before they part.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro / && exec "$@"'


class Fleet:
    """Starts the servers; `pids` in the order of `commands`. `writable`: all that they can write to, if `read_only`."""

    def __init__(self, commands: list[list[str]], writable: Path, log: Path) -> None:
        self.read_only = self._may_mount()
        prefix = ["unshare", "--mount", "sh", "-c", READ_ONLY, str(writable)] if self.read_only else []
        environment = {name: value for name, value in os.environ.items() if not name.startswith("EVERLONG_")}
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "tests.deploy.fleet", json.dumps(commands)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=environment | {"TMPDIR": str(writable)},
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, log.read_text()
        self.pids: list[int] = json.loads(line)

    @staticmethod
    def _may_mount() -> bool:
        trial = "mount -o remount,bind,ro / && ! touch / 2>/dev/null"
        command = ["unshare", "--mount", "sh", "-c", trial]
        try:
            return subprocess.run(command, check=False, capture_output=True).returncode == 0
        except FileNotFoundError:
            return False

    def kill9(self, server: int) -> None:
        """kill -9; its socket is closed when this returns."""
        os.kill(self.pids[server], signal.SIGKILL)
        assert self._process.stdout is not None
        assert int(self._process.stdout.readline()) == self.pids[server]

    def stop(self) -> None:
        """Ends those that run."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(40)


def main(commands: list[list[str]]) -> None:
    """Forks, prints the pids, then the pid of each that has ended; tells all to end when stdin is closed."""
    import torch

    from everlong_models.kernels.cpu import decode_step, matrix_product, prefill, quantise, sampling_kernel
    from everlong_models.kernels.cpu.quantised_matrix import can_quantise
    from everlong_models.kernels.cpu.thread_pool import prepare
    from everlong_models.kernels.linear import has_simd_kernels
    from everlong_server.process import listening  # noqa: F401 - what a server imports late
    from everlong_server.process.serving import serve_forever
    from everlong_server.settings import load_settings

    # What each would compile by itself (`decoding`, `sampling`, `llama`), where the processor can.
    weight = torch.zeros(1, 1024)
    if can_quantise(weight):
        prepare(quantise.quantise_groups, decode_step.STEP.run, matrix_product.multiply, sampling_kernel.sample)
    if has_simd_kernels(weight):
        prepare(prefill.linear, prefill.norm, prefill.rotate, prefill.attend)
    running = []
    for flags in commands:
        pid = os.fork()
        if pid == 0:
            os.close(0)
            os.dup2(2, 1)
            os._exit(serve_forever(load_settings(flags)))
        running.append(pid)
    print(json.dumps(running), flush=True)

    def end() -> None:
        while os.read(0, 1):
            pass
        for pid in list(running):
            os.kill(pid, signal.SIGTERM)

    threading.Thread(target=end, daemon=True).start()
    while running:
        pid, _ = os.wait()
        running.remove(pid)
        try:
            print(pid, flush=True)
        except BrokenPipeError:
            pass


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
