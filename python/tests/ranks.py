"""Processes of a torch.distributed group that do what a test asks for, each the same function."""

import contextlib
import multiprocessing
import os
import time
from datetime import timedelta


class Ranks:
    """`world` processes on this machine. `eager`: NCCL makes communicators with groups, not with
    first messages."""

    def __init__(self, world, folder, timeout=120, backend="gloo", eager=False):
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        store = f"file://{folder}/store-{world}-{os.urandom(4).hex()}"
        for rank in range(world):
            ours, theirs = context.Pipe()
            arguments = (theirs, backend, store, rank, world, timeout, eager)
            self.processes.append(context.Process(target=_serve, args=arguments, daemon=True))
            self.processes[-1].start()
            theirs.close()
            self.pipes.append(ours)

    def start(self, function, *arguments):
        for pipe in self.pipes:
            pipe.send((function, arguments))

    def results(self, ranks=None):
        """What each returns, or the exception that it raises."""
        return [self.pipes[r].recv() for r in ranks or range(len(self.pipes))]

    def run(self, function, *arguments):
        self.start(function, *arguments)
        return self.results()

    def exits_without(self, dead, timeout):
        """How all have ended, 10 s after a rank was killed whose loss shows in so many seconds."""
        self.processes[dead].join(60)
        end = time.monotonic() + timeout + 10
        for process in self.processes:
            process.join(max(0, end - time.monotonic()))
        return [process.exitcode for process in self.processes]

    def stop(self):
        for process in self.processes:
            process.terminate()
            process.join()


def _serve(pipe, backend, store, rank, world, timeout, eager):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend, store, rank=rank, world_size=world, timeout=timedelta(seconds=timeout),
        device_id=torch.device("cuda", rank) if eager else None,
    )  # fmt: skip
    with contextlib.suppress(EOFError):
        while True:
            function, arguments = pipe.recv()
            try:
                answer = function(rank, *arguments)
            except Exception as error:
                answer = error
            pipe.send(answer)
