"""The logits processors that a request asks for, checked and ready for the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from rocmforge.api.generate.schema import GenerationRequest
from rocmforge.engine.ipc.params import ProcessorUse
from rocmforge.errors import InvalidParameter, UnsupportedFeature
from rocmforge.fleet.model import ServedModel
from rocmforge.logits.builtin import BUILTIN
from rocmforge.logits.processor import MAX_PROCESSORS, LogitsProcessor, Parameter

FIELD: Final = "logits_processors"
MAX_INTEGER: Final = 2**24
"""Numbers reach processors as float32, which has every integer up to here."""
MAX_NUMBER: Final = float(np.finfo(np.float32).max)
MAX_TEXTS: Final = 32
MAX_TEXT_CHARACTERS: Final = 40

# The fields that other servers have for our processors: field, parameter. A processor is used if
# its first field has another value than the default.
_FIELDS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "dry": (
        ("dry_multiplier", "multiplier"),
        ("dry_base", "base"),
        ("dry_allowed_length", "allowed_length"),
        ("dry_penalty_last_n", "penalty_last_n"),
        ("dry_sequence_breakers", "sequence_breakers"),
    ),
    "typical_p": (("typical_p", "p"),),
    "xtc": (("xtc_probability", "probability"), ("xtc_threshold", "threshold")),
}


def processor_uses(model: ServedModel, request: GenerationRequest) -> tuple[ProcessorUse, ...]:
    """Returns what a request uses: by fields of their own first, then in the order it names them.

    Before the model is loaded, its backend counts as one that can do everything.

    Raises:
        InvalidParameter: an unknown processor or parameter, or a bad value.
        UnsupportedFeature: the backend has no such processor.
    """
    wanted = {name: (settings, "") for name, settings in _by_fields(request).items()}
    for name, settings in (request.logits_processors or {}).items():
        if name not in model.processors:
            raise InvalidParameter(
                f"There is no logits processor {name!r}. There are: "
                f"{', '.join(sorted(model.processors))}.",
                param=f"{FIELD}.{name}",
            )
        if name in wanted:
            raise InvalidParameter(
                f"{FIELD!r} and the field {_FIELDS[name][0][0]!r} both ask for {name!r}.",
                param=f"{FIELD}.{name}",
            )
        wanted[name] = (settings, f"{FIELD}.{name}.")
    if len(wanted) > MAX_PROCESSORS:
        raise InvalidParameter(
            f"A request may use at most {MAX_PROCESSORS} logits processors.", param=FIELD
        )
    runner = model.entry.status.runner
    for name in wanted:
        if runner is not None and name not in runner.logits_processors:
            raise UnsupportedFeature(
                f"The backend {runner.backend!r} has no logits processor {name!r}.",
                param=_FIELDS[name][0][0] if name in _FIELDS else f"{FIELD}.{name}",
            )
    vocab_size = model.tokenizer.vocab_size if runner is None else runner.vocab_size
    return tuple(
        _use(model, vocab_size, model.processors[name], settings, prefix)
        for name, (settings, prefix) in wanted.items()
    )


def _use(
    model: ServedModel,
    vocab_size: int,
    processor: LogitsProcessor,
    settings: Mapping[str, Any],
    prefix: str,
) -> ProcessorUse:
    known = {parameter.name for parameter in processor.parameters}
    unknown = next((name for name in settings if name not in known), None)
    if unknown is not None:
        raise InvalidParameter(
            f"The logits processor {processor.name!r} has no parameter {unknown!r}. It has: "
            f"{', '.join(sorted(known)) or 'none'}.",
            param=f"{prefix}{unknown}",
        )
    fields = _field_names(processor, prefix)
    values = {
        each.name: _checked(each, settings.get(each.name, each.default), fields[each.name])
        for each in processor.parameters
    }
    token_set, window = b"", -1
    if processor.token_set is not None:
        entries = values[processor.token_set.name]
        _check_ids(entries, model.tokenizer.vocab_size, fields[processor.token_set.name])
        token_set = model.token_sets.bits(entries, vocab_size)
    if not processor.reads_history:
        window = 0
    elif processor.history is not None:
        window = values[processor.history]
    return ProcessorUse(
        name=processor.name,
        numbers=tuple(float(values[each.name]) for each in processor.numbers),
        token_set=token_set,
        window=window,
    )


def _by_fields(request: GenerationRequest) -> dict[str, dict[str, Any]]:
    """Returns settings of processors with fields of their own, where those ask for something."""
    found = {}
    for processor in BUILTIN:
        fields = _FIELDS[processor.name]
        values = {parameter: getattr(request, field) for field, parameter in fields}
        values = {name: value for name, value in values.items() if value is not None}
        switch = processor.parameters[0]
        if values.get(switch.name, switch.default) != switch.default:
            found[processor.name] = values
    return found


def _field_names(processor: LogitsProcessor, prefix: str) -> dict[str, str]:
    """Returns the name of each parameter in requests."""
    if prefix:
        return {each.name: f"{prefix}{each.name}" for each in processor.parameters}
    return {parameter: field for field, parameter in _FIELDS[processor.name]}


def _checked(parameter: Parameter, value: Any, field: str) -> Any:
    """Returns a value of the parameter's type and range; a token set as a tuple."""
    if parameter.is_token_set:
        return _checked_entries(value, field)
    is_int = isinstance(parameter.default, int)
    if isinstance(value, bool) or not isinstance(value, int if is_int else int | float):
        kind = "an integer" if is_int else "a number"
        raise InvalidParameter(f"'{field}' must be {kind}, not {value!r}.", param=field)
    least, most = _bounds(parameter)
    if not least <= value <= most:
        raise InvalidParameter(
            f"'{field}' is {_shortened(value)}, but must be at least {least:.8g} and "
            f"at most {most:.8g}.",
            param=field,
        )
    return value


def _bounds(parameter: Parameter) -> tuple[float, float]:
    """Returns the smallest and the largest number that a parameter may be."""
    limit = MAX_INTEGER if isinstance(parameter.default, int) else MAX_NUMBER
    return max(parameter.least, -limit), min(parameter.most, limit)


def _shortened(value: float) -> str:
    """Shortens a number for an error; integers may have thousands of digits."""
    text = str(value)
    return text if len(text) <= 24 else f"{text[:20]}..."


def _checked_entries(value: Any, field: str) -> tuple[int | str, ...]:
    is_list = isinstance(value, list | tuple)
    if not is_list or not all(type(entry) in (int, str) for entry in value):
        raise InvalidParameter(
            f"'{field}' must be a list of texts and token ids, not {value!r}.", param=field
        )
    if len(value) > MAX_TEXTS:
        raise InvalidParameter(f"'{field}' may have at most {MAX_TEXTS} entries.", param=field)
    if any(isinstance(e, str) and not 0 < len(e) <= MAX_TEXT_CHARACTERS for e in value):
        raise InvalidParameter(
            f"Texts in '{field}' must have 1 to {MAX_TEXT_CHARACTERS} characters.", param=field
        )
    return tuple(value)


def _check_ids(entries: tuple[int | str, ...], vocab_size: int, field: str) -> None:
    for entry in entries:
        if isinstance(entry, int) and not 0 <= entry < vocab_size:
            raise InvalidParameter(
                f"Token id {entry} in '{field}' is not in the vocabulary of {vocab_size} tokens.",
                param=field,
            )
