"""Computes the step of a bundle again: on the reference, and on a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from msgspec import convert

from rocmforge.backend.protocol import Backend, LoadOptions, Runner
from rocmforge.checkpoint.cache_types import KvDtype
from rocmforge.engine.ipc.params import TokenLogprob
from rocmforge.engine.ipc.recorded import TOP
from rocmforge.engine.proof.bundle import ProofBundle, digest_of
from rocmforge.engine.proof.comparing import WANTED_TOP, differ, restricted
from rocmforge.engine.proof.messages import Begin
from rocmforge.engine.proof.process import reference_runners
from rocmforge.engine.proof.scoring import CHUNK, Scorer
from rocmforge.engine.proof.watch import Watch
from rocmforge.errors import ConfigurationError
from rocmforge.models.checkpoint import Checkpoint
from rocmforge.opening import open_checkpoint

_MOST_DEPTHS: Final = 12
_BITS: Final[Mapping[int, Literal["8", "16"]]] = MappingProxyType({8: "8", 16: "16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The places of a bundle, as one way of computing them has them now."""

    way: str
    places: int
    error: float  # as of `Watch`
    expected: float  # as of `Watch`
    worst: tuple[int, float]  # the place where they part most, and the KL divergence there
    alarm: str | None  # what is wrong

    @property
    def times(self) -> float:
        """The error, in those that rounding explains."""
        return self.error / self.expected

    def __str__(self) -> str:
        place, kl = self.worst
        told = (
            f"{self.places} places, error {self.error:.2e}, {self.times:.1f} times "
            f"rounding; worst at place {place}, KL {kl:.1e}"
        )
        return told if self.alarm is None else f"{told}; {self.alarm}"


class Replay:
    """The references, loaded as for the bundle's device.

    Args:
        bundle: with its tokens.
        checkpoint: its model.

    Raises:
        ConfigurationError: the bundle has no tokens, or others than it was made of.
        RocmForgeError: the model cannot be loaded.
    """

    def __init__(self, bundle: ProofBundle, checkpoint: Checkpoint) -> None:
        if bundle.tokens is None:
            raise ConfigurationError(
                "The bundle holds no tokens, so it can be read and not replayed. With "
                "--verify-prompts, a server writes bundles that can."
            )
        if digest_of(bundle.tokens) != bundle.digest:
            raise ConfigurationError("The bundle's tokens are not those that it was made of.")
        self._bundle = bundle
        self._tokens = bundle.tokens
        self._places = _places(bundle)
        begin = Begin(
            model=bundle.model,
            identity=None,
            runner=bundle.runner,
            options=bundle.options,
            bounds=bundle.bounds,
            bundles=None,
            log_level="WARNING",
            log_format="text",
        )
        with ExitStack() as stack:
            exact, rounding = map(
                stack.enter_context, map(closing, reference_runners(begin, checkpoint))
            )
            score = partial(self._score, num_top=WANTED_TOP)
            self._wanted, self._rounded = score(exact), score(rounding)

    def recorded(self) -> Replayed:
        """Judges what the device found then."""
        found = [
            TokenLogprob(
                token_id=-1 if place.drawn is None else place.drawn,
                logprob=math.nan,
                top=tuple(zip(place.ids or (), map(_number, place.device), strict=False)),
            )
            for place in self._bundle.places
        ]
        if self._bundle.is_broken:
            found.append(TokenLogprob(token_id=-1, logprob=math.nan, top=()))
        return self._judge("recorded", found)

    def on(self, device: Runner) -> Iterator[Replayed]:
        """Computes the places on a device: in prefills, and token by token as in decodes.

        Raises:
            EngineError: the device failed.
        """
        for way, chunk in (("device, prefill", CHUNK), ("device, token by token", 1)):
            yield self._judge(way, self._score(device, TOP, chunk))

    def _score(self, runner: Runner, num_top: int, chunk: int = CHUNK) -> list[TokenLogprob]:
        return Scorer(runner, chunk).score(
            self._tokens, self._places, num_top, self._bundle.adapter
        )

    def _judge(self, way: str, found: list[TokenLogprob]) -> Replayed:
        watch = Watch(self._bundle.bounds, least=len(found))
        differences = [differ(w, g) for w, g in zip(self._wanted, found, strict=True)]
        by_rounding = [
            differ(w, restricted(r, g))
            for w, r, g in zip(self._wanted, self._rounded, found, strict=True)
        ]
        alarm = watch.take(differences, by_rounding)
        return Replayed(
            way=way,
            places=len(found),
            error=watch.error,
            expected=watch.expected,
            worst=max(
                zip(self._places, (each.kl for each in differences), strict=True),
                key=lambda each: each[1],
            ),
            alarm=alarm,
        )


def device_options(bundle: ProofBundle, device: str | None) -> LoadOptions:
    """Returns how a device loads the bundle's model: as then, but for one sequence."""
    assert bundle.tokens is not None, "it can be replayed"
    runner = bundle.runner
    return replace(
        bundle.options,
        device=device,
        max_context=min(runner.max_context, len(bundle.tokens) + CHUNK),
        least_context=None,
        max_sequences=1,
        max_batched_tokens=max(CHUNK, 16),
        kv_blocks=None,
        # What was chosen then, where it was left to the backend: another would round differently.
        kv_dtype=convert(runner.kv_dtype, KvDtype),
        activation_bits=_BITS.get(runner.activation_bits, "auto"),
        memory_share=1.0,
        releases_windows=False,
        state_snapshots=0,
    )


def by_depth(
    bundle: ProofBundle, checkpoint: Checkpoint, load: Callable[[Checkpoint], Runner]
) -> Iterator[tuple[int, Replayed]]:
    """Judges the model cut off behind some of its layers: where a difference begins.

    The first layers alone, with the last norm and the output matrix behind them, are a model too.
    Of a deep model, every few layers are tried, and then those in between where it goes wrong.

    Args:
        bundle: with its tokens.
        checkpoint: its model.
        load: loads such a model onto the device.

    Yields:
        How many layers it had, and the worse of prefill and decodes. The last layer of the smallest
        one that is wrong is the first that is wrong.

    Raises:
        ConfigurationError: the model's layers have an embedding of their own each.
        EngineError: the device failed.
    """
    config = checkpoint.config
    if config.per_layer_size:
        raise ConfigurationError(f"{config.architecture} cannot be cut off behind a layer.")

    def cut(depth: int) -> Replayed:
        part = replace(checkpoint, config=replace(config, layers=config.layers[:depth]))
        with closing(load(part)) as device:
            worse = max(Replay(bundle, part).on(device), key=lambda each: each.times)
        return replace(worse, way=f"first {depth} layers")

    step = -(-config.num_layers // _MOST_DEPTHS)
    right, wrong = 0, None
    for depth in (*range(step, config.num_layers, step), config.num_layers):
        found = cut(depth)
        yield depth, found
        if wrong is None and found.alarm is None:
            right = depth
        wrong = wrong or (depth if found.alarm is not None else None)
    while wrong is not None and wrong - right > 1:
        middle = (right + wrong) // 2
        found = cut(middle)
        yield middle, found
        right, wrong = (middle, wrong) if found.alarm is None else (right, middle)


def open_model(bundle: ProofBundle, path: Path | None) -> Checkpoint:
    """Opens a bundle's model: the file named, or the one that it was made with.

    Raises:
        ModelLoadError: there is no such file, or it cannot be used.
    """
    return open_checkpoint(path or Path(bundle.model), bundle.options.adapters)


def load_device(
    bundle: ProofBundle, backend: Backend, device: str | None
) -> Callable[[Checkpoint], Runner]:
    """Returns what loads a model as the bundle's was."""
    options = device_options(bundle, device)
    return lambda checkpoint: backend.load(checkpoint, options, lambda stage, share: None)


def _places(bundle: ProofBundle) -> range:
    """Returns the places of a bundle, which follow each other."""
    stop = bundle.num_tokens
    if bundle.is_broken:
        stop += 1
        first = stop - 1 - len(bundle.places)
        return range(first, stop)
    first = bundle.places[0].place
    return range(first, first + len(bundle.places))


def _number(value: float | None) -> float:
    return math.nan if value is None else value
