"""Logits processors: parameters, reductions, and the function that gives new logits."""

from __future__ import annotations

import inspect
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from rocmforge.errors import ConfigurationError

INF: Final = math.inf
where: Final = np.where
exp: Final = np.exp
log: Final = np.log
sqrt: Final = np.sqrt
minimum: Final = np.minimum
maximum: Final = np.maximum

MAX_NUMBERS: Final = 8
"""Numeric parameters that a processor may have."""
MAX_PROCESSORS: Final = 8
"""Processors that a request may use."""

# What functions may ask for besides parameters and what they need.
ROW_VALUES: Final = ("vocab", "position", "uniform")
TOKEN_VALUES: Final = ("logit", "token")
HISTORY_VALUES: Final = ("history", "index", "length", "prompt_length")

Function = Callable[..., Any]


def contains(tokens: Any, token: Any) -> Any:
    """Returns whether a token set (a parameter whose default is a tuple) holds a token."""
    return (tokens[token >> 5] >> (token & 31)) & 1 != 0


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number or token set that a request may set. The type is that of the default.

    A tuple is a token set: requests give token ids, and texts that stand for every token
    containing them. Functions look into it with `contains`.

    Args:
        name: how requests and functions call it.
        default: a float, an int, or a tuple of token ids and texts.
        least: smallest number allowed.
        most: largest number allowed.
    """

    name: str
    default: float | int | tuple[int | str, ...]
    least: float = -INF
    most: float = INF

    @property
    def is_token_set(self) -> bool:
        """Whether it is a set of tokens, not a number."""
        return isinstance(self.default, tuple)


@dataclass(frozen=True, slots=True)
class Reduction:
    """A function of every token or every place of the history, boiled down to a number.

    With `per_token`, to a number for each token of the vocabulary: of the places in the history
    where that token stands, or `missing` if there is none.
    """

    function: Function
    over: Literal["vocabulary", "history"]
    by: Literal["sum", "max", "min"]
    per_token: bool
    missing: float

    @property
    def name(self) -> str:
        """The name by which other functions ask for the result."""
        return self.function.__name__


@dataclass(frozen=True, slots=True)
class Nucleus:
    """The tokens with the smallest scores that weigh more than a share together; ties go together.

    The function gives a score and a weight for each token; `share` names a parameter. The result,
    for each token, is whether it belongs to them.
    """

    function: Function
    share: str

    @property
    def name(self) -> str:
        """The name by which other functions ask for the result."""
        return self.function.__name__


Need = Reduction | Nucleus


def reduction(
    *,
    over: Literal["vocabulary", "history"],
    by: Literal["sum", "max", "min"],
    per_token: bool = False,
    missing: float = 0.0,
) -> Callable[[Function], Reduction]:
    """Makes a `Reduction` of a function.

    Over the vocabulary the function may ask for `logit` and `token`; over the history for
    `history` (token ids, the latest last), its `length`, the `index` it is called for, and
    `prompt_length`, the index of the first generated token.
    """
    return lambda function: Reduction(function, over, by, per_token, missing)


def nucleus(*, share: str) -> Callable[[Function], Nucleus]:
    """Makes a `Nucleus` of a function over the vocabulary that returns (score, weight)."""
    return lambda function: Nucleus(function, share)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsProcessor:
    """See `logits_processor`."""

    name: str
    function: Function
    parameters: tuple[Parameter, ...]
    needs: tuple[Need, ...]
    history: str | None

    @property
    def numbers(self) -> tuple[Parameter, ...]:
        """The numeric parameters, in the order in which their values are kept."""
        return tuple(each for each in self.parameters if not each.is_token_set)

    @property
    def token_set(self) -> Parameter | None:
        """The parameter that is a set of tokens, if there is one."""
        return next((each for each in self.parameters if each.is_token_set), None)

    @property
    def reads_history(self) -> bool:
        """Whether any function looks at the tokens so far."""
        return any(isinstance(need, Reduction) and need.over == "history" for need in self.needs)

    @property
    def origin(self) -> str:
        """File and line, for errors."""
        return location(self.function)


def logits_processor(
    name: str,
    *,
    parameters: Sequence[Parameter] = (),
    needs: Sequence[Need] = (),
    history: str | None = None,
) -> Callable[[Function], LogitsProcessor]:
    """Makes a `LogitsProcessor` of the function that gives a token's new logit.

    All functions may ask for `vocab` (size of the vocabulary), `position` (of the token to be
    drawn), `uniform` (in [0, 1), made of the request's seed, the position and this name),
    parameters, and results of reductions that stand before them in `needs`.

    Args:
        name: how requests call it.
        parameters: what requests may set; at most eight numbers and one token set.
        needs: reductions, in the order in which they are computed.
        history: name of the int parameter that says how many of the last tokens the history
            has, below zero for all of them; without it, the history is the whole context.

    Raises:
        ConfigurationError: a function asks for something that is not there.
    """

    def make(function: Function) -> LogitsProcessor:
        made = LogitsProcessor(
            name=name,
            function=function,
            parameters=tuple(parameters),
            needs=tuple(needs),
            history=history,
        )
        _check(made)
        return made

    return make


def arguments_of(function: Function) -> tuple[str, ...]:
    """Returns the names of a function's arguments."""
    return tuple(inspect.signature(function).parameters)


def location(function: Function) -> str:
    """Returns name, file and line of a function."""
    code = function.__code__
    return f"{function.__name__} ({code.co_filename}:{code.co_firstlineno})"


def uniform_number(seed: int, position: int, name: str) -> float:
    """Draws a number in [0, 1) with 24 random bits: SplitMix64 (Steele et al. 2014).

    It has nothing in common with the noise of the draw, whose generator is another.
    """
    mask = (1 << 64) - 1
    state = seed
    for word in (position, zlib.crc32(name.encode())):
        state = (state + 0x9E3779B97F4A7C15 * (word + 1)) & mask
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return (state >> 40) * 2.0**-24


def _check(processor: LogitsProcessor) -> None:
    known = {*ROW_VALUES, *(parameter.name for parameter in processor.parameters)}
    _require(
        len(processor.numbers) <= MAX_NUMBERS
        and len(processor.parameters) - len(processor.numbers) <= 1,
        processor,
        f"it may have {MAX_NUMBERS} numbers and one token set as parameters",
    )
    window = {parameter.name: parameter for parameter in processor.numbers}.get(
        processor.history or ""
    )
    _require(
        processor.history is None or (window is not None and type(window.default) is int),
        processor,
        f"its history is as long as {processor.history!r} says, which is no int parameter",
    )
    per_token: set[str] = set()
    for need in processor.needs:
        if isinstance(need, Nucleus):
            _require(need.share in known, processor, f"there is no parameter {need.share!r}")
            sees = known | per_token | {*TOKEN_VALUES}
        elif need.over == "history":
            sees = known | {*HISTORY_VALUES}
        else:
            _require(not need.per_token, processor, f"{need.name} is over the vocabulary")
            sees = known | per_token | {*TOKEN_VALUES}
        _check_arguments(need.function, sees)
        is_per_token = isinstance(need, Nucleus) or need.per_token
        (per_token if is_per_token else known).add(need.name)
    _check_arguments(processor.function, known | per_token | {*TOKEN_VALUES})


def _require(condition: bool, processor: LogitsProcessor, problem: str) -> None:
    if not condition:
        raise ConfigurationError(
            f"The logits processor {processor.name!r} of {processor.origin} is wrong: {problem}."
        )


def _check_arguments(function: Function, known: set[str]) -> None:
    unknown = [name for name in arguments_of(function) if name not in known]
    if unknown:
        raise ConfigurationError(
            f"{location(function)} asks for {', '.join(map(repr, unknown))}, which it cannot see. "
            f"There are: {', '.join(sorted(known))}."
        )
