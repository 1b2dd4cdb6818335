"""A service that is killed at a chosen moment; run by ``test_faults`` as a process of its own.

Arguments: state folder, and where it dies: in a step, a save, between the renames of a save, a way back, or after the
disk took no more.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from servesupport import samples, small_method

import driftgate.serve.state_folder
from driftgate.serve.engine import Engine, EngineSettings
from driftgate.serve.state_folder import STATE, StateFolder


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(path: Path, where: str) -> None:
    folder = StateFolder(path)
    engine = Engine(folder.start(small_method()), folder, EngineSettings(max_delay=0.0, batch_size=16, save_every=2))

    def serve(count: int) -> None:
        for seed in range(count):
            engine.submit(samples(16, seed)).result()
        engine.run(lambda: None).result()

    serve(4)  # the last save is that of step 4
    engine.snapshot("before the end").result()
    if where == "step":
        serve(1)
        engine.method._learn = die  # type: ignore[attr-defined]
        serve(1)
    elif where == "save":
        engine.method.save = lambda file: (Path(file).write_bytes(b"half of it"), die())  # type: ignore[method-assign]
        serve(2)
    elif where == "rename":
        replace = os.replace
        # The old state has given up its name, the new one has not taken it yet.
        driftgate.serve.state_folder.os.replace = lambda a, b: die() if str(b).endswith(STATE) else replace(a, b)  # type: ignore[attr-defined]
        serve(2)
    elif where == "rollback":
        engine.method.load_state_dict = die  # type: ignore[method-assign, assignment]
        engine.rollback(1, "the last").result()
    elif where == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))  # no file grows beyond
        serve(3)
        assert "could not be saved" in str(engine.save_problem)
        die()


main(Path(sys.argv[1]), sys.argv[2])
