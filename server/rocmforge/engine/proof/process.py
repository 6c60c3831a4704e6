"""The verifier: `python -m rocmforge.engine.proof.process --fd N`.

A process of the lowest priority, beside the engine's. It loads the model with the reference backend
and computes samples again, one after the other, for as long as the server's end of the socket is
open.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import msgspec

from rocmforge.backend import owned_process, registry
from rocmforge.backend.optional import Rounding
from rocmforge.backend.protocol import LoadOptions, Runner
from rocmforge.checkpoint.cache_types import SCALED_CACHES
from rocmforge.engine.ipc.messages import Shutdown, describe_error
from rocmforge.engine.ipc.wire import FrameReader, encode
from rocmforge.engine.proof.bundle import write_bundle
from rocmforge.engine.proof.comparing import WANTED_TOP, Difference, differ, restricted
from rocmforge.engine.proof.messages import (
    Begin,
    Checked,
    FromVerifier,
    Opened,
    Sample,
    ToVerifier,
)
from rocmforge.engine.proof.recorder import LONGEST
from rocmforge.engine.proof.scoring import CHUNK, Scorer
from rocmforge.engine.proof.watch import Watch
from rocmforge.errors import BackendError, RocmForgeError
from rocmforge.logs import set_up_logging
from rocmforge.models.checkpoint import Checkpoint
from rocmforge.opening import check_unchanged, open_checkpoint

logger = logging.getLogger(__name__)

_NICE: Final = 19
_READ_BYTES: Final = 1 << 18
_TRIAL_TOKENS: Final = 16


def reference_options(begin: Begin) -> LoadOptions:
    """Returns how the reference backend loads the model: for one sequence, in float32."""
    context = min(begin.runner.max_context, LONGEST)
    return LoadOptions(
        device=None,
        max_context=context,
        max_sequences=1,
        max_batched_tokens=CHUNK,
        kv_blocks=None,
        kv_dtype="auto",
        memory_utilization=0.9,
        adapters=begin.options.adapters,
    )


def load_reference(begin: Begin) -> tuple[Runner, Runner]:
    """Loads the model; returns the runner that is right, and one that rounds as the device may.

    Where the device's cache is int8, the right one has such a cache, too, and is exact but for it:
    rounding to int8 would hide what is wrong. Activations are rounded to int8 only where they meet
    weights that are quantised.

    Raises:
        RocmForgeError: the files are not what they were, or the host's memory has no room.
    """
    path = Path(begin.model)
    if begin.identity is not None:
        check_unchanged(path, begin.identity)
    with open_checkpoint(path, begin.options.adapters) as checkpoint:
        return reference_runners(begin, checkpoint)


def reference_runners(begin: Begin, checkpoint: Checkpoint) -> tuple[Runner, Runner]:
    """Does what `load_reference` does with a checkpoint that is open already."""
    backend = registry.create(registry.REFERENCE)
    runner = backend.load(checkpoint, reference_options(begin), lambda stage, share: None)
    is_quantised = any(each.format.is_quantised for each in checkpoint.weights.values())
    assert isinstance(runner, Rounding), "the reference backend's runner can round"
    kv_dtype, bits = begin.runner.kv_dtype, begin.runner.activation_bits
    rounding = runner.rounded(kv_dtype, bits if is_quantised else max(bits, 16))
    right = runner.rounded(kv_dtype, 32) if kv_dtype in SCALED_CACHES else runner
    return right, rounding


class Checker:
    """Computes samples again and judges them.

    Args:
        begin: what was loaded, and how it is judged.
        exact: the reference's.
        rounding: the same, as far as rounding explains a difference.
    """

    def __init__(self, begin: Begin, exact: Runner, rounding: Runner) -> None:
        self._begin = begin
        self._scorer = Scorer(exact)
        self._rounding = Scorer(rounding)
        self._watch = Watch(begin.bounds)

    def check(self, sample: Sample) -> Checked:
        """Verifies one sample; writes a bundle of it if it raises an alarm.

        Raises:
            EngineError: the reference failed.
        """
        started = time.perf_counter()
        places, got = range(sample.first, sample.stop), sample.places()
        found = self._scorer.score(sample.tokens, places, WANTED_TOP, sample.adapter)
        known = places[: len(got)]
        rounded = self._rounding.score(sample.tokens, known, WANTED_TOP, sample.adapter)
        differences = [differ(w, g) for w, g in zip(found, got, strict=False)]
        # Of the same tokens, which the device has named.
        by_rounding = [
            differ(w, restricted(r, g)) for w, r, g in zip(found, rounded, got, strict=False)
        ]
        alarm = self._watch.take(differences, by_rounding)
        if sample.is_broken and found[-1].top:
            alarm = f"no token at place {sample.stop - 1}: the device's logits hold a NaN there"
        bundle = None
        if alarm is not None and self._begin.bundles is not None:
            bundle = write_bundle(self._begin, sample, found, alarm)
        return Checked(
            number=sample.number,
            tokens=len(differences),
            agreeing=sum(each.agrees for each in differences),
            kl_sum=sum(each.kl for each in differences if math.isfinite(each.kl)),
            worst=_worst(differences),
            error=self._watch.error,
            expected=self._watch.expected,
            seconds=time.perf_counter() - started,
            computed=sample.stop - 1,
            alarm=alarm,
            bundle=None if bundle is None else str(bundle),
        )


def _worst(differences: Sequence[Difference]) -> float:
    return max((each.worst for each in differences if math.isfinite(each.worst)), default=0.0)


def _seconds_of_a_token(runner: Runner) -> float:
    """Measures it: twice, as the first trial meets pages that nobody has touched.

    A token is computed twice, exactly and rounded.
    """
    tokens = [0] * min(_TRIAL_TOKENS, runner.info.max_context)
    for _ in range(2):
        started = time.perf_counter()
        Scorer(runner).score(tokens, range(len(tokens), len(tokens) + 1), 1)
    return 2 * (time.perf_counter() - started) / len(tokens)


def _messages(sock: socket.socket) -> Iterator[ToVerifier]:
    """Yields what the server sends, until it closes its end."""
    reader: FrameReader[ToVerifier] = FrameReader(ToVerifier)
    while data := sock.recv(_READ_BYTES):
        yield from reader.feed(data)


def _send(sock: socket.socket, message: FromVerifier) -> None:
    sock.sendall(encode(message))


def run(sock: socket.socket) -> int:
    """Loads what the first message names and checks samples; returns the exit status."""
    messages = _messages(sock)
    begin = next(messages)
    assert isinstance(begin, Begin), "the first message says what to load"
    set_up_logging(begin.log_level, begin.log_format)
    try:
        runner, rounding = load_reference(begin)
        with closing(runner), closing(rounding):
            _send(
                sock,
                Opened(max_context=runner.info.max_context, token_s=_seconds_of_a_token(runner)),
            )
            checker = Checker(begin, runner, rounding)
            for message in messages:
                if isinstance(message, Shutdown):
                    break
                assert isinstance(message, Sample), "it has begun"
                _send(sock, checker.check(message))
    except RocmForgeError as error:
        _send(sock, describe_error(error))
        return 1
    except (MemoryError, OSError, msgspec.MsgspecError) as error:
        if isinstance(error, ConnectionError):
            raise
        _send(sock, describe_error(BackendError("verification", repr(error))))
        return 1
    return 0


def _yield_to_others() -> None:
    """Leaves processors, disks and memory to whoever else wants them.

    Under SCHED_IDLE a task gets processors, and disks, that no other task wants: nice 19 alone is
    still a weight beside others. Where memory runs out, the kernel ends this process first.
    """
    os.nice(_NICE)
    with suppress(OSError):  # a sandbox may forbid it
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the process; returns its exit status."""
    _yield_to_others()
    descriptor = owned_process.begin("rocmforge.engine.proof.process", arguments)
    try:
        return run(socket.socket(fileno=descriptor))
    except ConnectionError:
        return 1


if __name__ == "__main__":
    sys.exit(main())
