"""POST /tokenize and /detokenize and GET /tokenizer_info, shaped like vLLM's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Request, Response, get, post
from litestar.params import FromQuery

from rocmforge.api.dependencies import ModelsDep
from rocmforge.api.generate.answer import json_response
from rocmforge.api.generate.checks import check_token_ids
from rocmforge.api.generate.prompts import chat_prompt
from rocmforge.api.http.body import MAX_BODY, read_json
from rocmforge.api.images.prompt_images import PromptImage
from rocmforge.api.ops_schema import (
    DetokenizedText,
    DetokenizeRequest,
    TokenizeRequest,
    TokenizerInfo,
    Tokens,
)
from rocmforge.errors import InvalidParameter
from rocmforge.fleet.model import ServedModel

_tokenize_decoder = msgspec.json.Decoder(TokenizeRequest)
_detokenize_decoder = msgspec.json.Decoder(DetokenizeRequest)


# A million tokens, and more than most models have in a context. Longer texts would keep threads
# busy for seconds.
_TEXT_SIZE = {MAX_BODY: 4 * 1024 * 1024}


@post("/tokenize", status_code=200, opt=_TEXT_SIZE)
async def tokenize(request: Request[Any, Any, Any], models: ModelsDep) -> Response[bytes]:
    """Returns the token ids of a text or of a conversation."""
    wanted = await read_json(request, _tokenize_decoder)
    model = models.find(wanted.model)
    images = await models.read_images(wanted.model, wanted.messages or ())
    return await models.offload(_tokens, model, wanted, images)


@post("/detokenize", status_code=200, opt=_TEXT_SIZE)
async def detokenize(request: Request[Any, Any, Any], models: ModelsDep) -> Response[bytes]:
    """Returns the text that token ids stand for, special tokens spelled out."""
    wanted = await read_json(request, _detokenize_decoder)
    model = models.find(wanted.model)
    return await models.offload(_text, model, wanted)


@get("/tokenizer_info")
async def tokenizer_info(models: ModelsDep, model: FromQuery[str | None] = None) -> Response[bytes]:
    """Returns what programs need that tokenise over HTTP, as lm-eval does."""
    served = models.find(model)
    tokenizer = served.tokenizer
    return json_response(
        TokenizerInfo(
            tokenizer_class=type(tokenizer).__name__,
            vocab_size=tokenizer.vocab_size,
            bos_token=None if tokenizer.bos_id is None else tokenizer.token(tokenizer.bos_id),
            eos_token=tokenizer.token(tokenizer.eos_ids[0]) if tokenizer.eos_ids else None,
            chat_template=served.templates.select().source,
        )
    )


def _tokens(
    model: ServedModel, wanted: TokenizeRequest, images: Sequence[PromptImage]
) -> Response[bytes]:
    ids = _token_ids(model, wanted, images)
    names = [model.tokenizer.token(i) for i in ids] if wanted.return_token_strs else None
    return json_response(
        Tokens(count=len(ids), max_model_len=model.max_context, tokens=list(ids), token_strs=names)
    )


def _text(model: ServedModel, wanted: DetokenizeRequest) -> Response[bytes]:
    check_token_ids(model, wanted.tokens, "tokens")
    text = model.tokenizer.decode(wanted.tokens, skip_special=False)
    return json_response(DetokenizedText(prompt=text))


def _token_ids(
    model: ServedModel, wanted: TokenizeRequest, images: Sequence[PromptImage]
) -> tuple[int, ...]:
    if (wanted.prompt is None) == (wanted.messages is None):
        raise InvalidParameter("Give either 'prompt' or 'messages'.", param="prompt")
    if wanted.messages is not None:
        if wanted.parse_special is not None:
            raise InvalidParameter(
                "'parse_special' belongs to 'prompt': the template's special tokens are always "
                "parsed, those inside messages never.",
                param="parse_special",
            )
        return chat_prompt(
            model,
            wanted.messages,
            template_arguments=wanted.chat_template_kwargs,
            add_generation_prompt=wanted.add_generation_prompt,
            continue_final_message=wanted.continue_final_message,
            images=images,
        ).token_ids
    assert wanted.prompt is not None
    add_bos = None if wanted.add_special_tokens is not False else False
    parse_special = wanted.parse_special is not False
    ids = model.tokenizer.encode(wanted.prompt, parse_special=parse_special, add_bos=add_bos)
    return tuple(ids)
