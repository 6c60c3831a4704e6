"""Random models, held to JSON schemas: every finished answer validates.

With the folder `json/tests/draft2020-12` of jsonschema's sdist in ROCMFORGE_TEST_SCHEMA_SUITE,
not only random schemas but also those of the official test suite that can be enforced.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rocmforge.backend import registry
from rocmforge.engine.constraint.grammar import Grammars
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.params import FinishReason, GenerateRequest, SamplingParams, TokenPieces
from rocmforge.engine.ipc.prompt import token_prompt
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine_options import token_pieces
from rocmforge.gguf.tokenizer import read_tokenizer
from rocmforge.text.output.grammar import Schema, find_problem, json_schema_grammar
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.api import tiny
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import by_name
from tests.support.files.json_schemas import RandomSchemas, with_recursion
from tests.support.models.loading import load_file
from tests.support.models.options import SMALL

NUM_SCHEMAS = 500
MAX_TOKENS = 400
STREAMS = 32


class Model:
    """A core on the reference backend; its model is random."""

    def __init__(self, core: EngineCore, pieces: TokenPieces) -> None:
        self._core = core
        self._pieces = pieces

    def answers(self, grammars: list[str]) -> list[tuple[bytes, FinishReason]]:
        """What it says under each of these grammars, at temperature 1.5."""
        texts = [b""] * len(grammars)
        reasons: dict[int, FinishReason] = {}
        commands = [self._request(*item) for item in enumerate(grammars)]
        while commands or self._core.has_work:
            for event in self._core.step(commands).events:
                for token in event.token_ids:
                    if token != tiny.IM_END:
                        texts[event.request_id] += self._pieces.pieces[token]
                if event.finish_reason is not None:
                    assert event.error is None, (event.error, grammars[event.request_id])
                    reasons[event.request_id] = event.finish_reason
            commands = []
        return [(text, reasons[i]) for i, text in enumerate(texts)]

    def _request(self, number: int, grammar: str) -> GenerateRequest:
        return GenerateRequest(
            request_id=number,
            prompt=token_prompt([tiny.BOS, number % 256]),
            sampling=SamplingParams(
                max_tokens=MAX_TOKENS, temperature=1.5, seed=number, grammar=grammar
            ),
            eos_ids=self._pieces.eos_ids,
            arrival_ns=0,
        )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    recipe = by_name("llama")
    config = recipe.config | {"vocab_size": tiny.VOCAB_SIZE, "max_position_embeddings": 512}
    path = write_model(replace(recipe, config=config), tmp_path_factory.mktemp("model"))
    options = replace(
        SMALL,
        max_context=512,
        max_sequences=STREAMS,
        max_batched_tokens=256,
        kv_blocks=STREAMS * 32,
    )
    pieces = token_pieces(Tokenizer(read_tokenizer(tiny.metadata())))
    assert pieces is not None
    runner = load_file(registry.create("reference"), path, options)
    with closing(runner):
        limits = SchedulerLimits(
            max_sequences=STREAMS, max_batched_tokens=256, max_waiting=NUM_SCHEMAS + 1000
        )
        grammars = Grammars(pieces, runner.info.vocab_size)
        yield Model(EngineCore(runner, limits, time.monotonic_ns, grammars=grammars), pieces)


def check(model: Model, schemas: Sequence[Schema]) -> float:
    """Validates every finished answer; returns the share of finished ones."""
    answers = model.answers([json_schema_grammar(schema) for schema in schemas])
    finished = 0
    for schema, (text, reason) in zip(schemas, answers, strict=True):
        if reason is FinishReason.STOP:
            finished += 1
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
        else:
            assert reason is FinishReason.LENGTH
    return finished / len(schemas)


def test_every_finished_answer_validates_against_its_random_schema(model: Model) -> None:
    schemas = [RandomSchemas(1000 + i).schema() for i in range(NUM_SCHEMAS)]
    schemas[::8] = [with_recursion(schema) for schema in schemas[::8]]
    assert check(model, schemas) > 0.95


def enforceable(folder: Path) -> Iterator[Schema]:
    """The schemas of a folder of the official test suite, without those that are refused."""
    for file in sorted(folder.glob("*.json")):
        groups: list[dict[str, Any]] = json.loads(file.read_text())
        for group in groups:
            if not find_problem(json_schema_grammar(group["schema"])):
                yield group["schema"]


def test_every_finished_answer_validates_against_the_official_schemas(model: Model) -> None:
    variable = "ROCMFORGE_TEST_SCHEMA_SUITE"
    if variable not in os.environ:
        pytest.skip(f"set {variable} to json/tests/draft2020-12 of jsonschema's sdist")
    schemas = list(enforceable(Path(os.environ[variable])))
    assert len(schemas) > 100
    assert check(model, schemas) > 0.5
