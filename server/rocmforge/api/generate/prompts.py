"""Conversations as token ids, through the model's chat template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from rocmforge.api.generate.schema import ChatRequest, ContentPart, Message
from rocmforge.api.generate.tools import offered_tools
from rocmforge.api.images.prompt_images import PromptImage, prompt_with_images
from rocmforge.api.images.schema import IMAGE, ImageUrl, PlacedImage
from rocmforge.backend.step import NO_ADAPTER
from rocmforge.engine.ipc.params import NO_KEY, Share
from rocmforge.engine.ipc.prompt import Prompt, token_prompt
from rocmforge.engine.sequence.block_keys import root_key
from rocmforge.errors import BadTemplate, InvalidParameter, UnsupportedFeature
from rocmforge.fleet.model import ServedModel
from rocmforge.text.template.template import encode_prompt
from rocmforge.text.tokenizer.encoded_texts import OwnTexts
from rocmforge.text.tool_calls import tools_as_text

# What chat templates are given from other places than `chat_template_kwargs`.
TEMPLATE_NAMES = (
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
)


def images_of(messages: Sequence[Message]) -> Iterator[PlacedImage]:
    """Yields the images of a conversation in their order.

    Raises:
        InvalidParameter: a part that should be one is none.
    """
    for i, message in enumerate(messages):
        if isinstance(message.content, list):
            for j, part in enumerate(message.content):
                if part.type == IMAGE:
                    yield placed(part.image_url, f"messages[{i}].content[{j}].{IMAGE}")


def placed(image: ImageUrl | str | None, path: str) -> PlacedImage:
    """Returns an image with its path. Raises InvalidParameter if there is none."""
    if image is None:
        raise InvalidParameter(f"'{path}' is missing.", param=path)
    if isinstance(image, str):
        return PlacedImage(url=image, path=path)
    if isinstance(image, PlacedImage):
        return image
    return PlacedImage(url=image.url, detail=image.detail, path=path)


def check_takes_images(model: ServedModel, image: PlacedImage) -> None:
    """Raises UnsupportedFeature, with the model's name, if it takes text only."""
    if model.vision is None:
        raise UnsupportedFeature(
            f"The model {model.name} takes no images, only text.", param=image.path
        )


def asker_key(request: ChatRequest, share: Share) -> bytes:
    """Returns who may learn, from the time it takes, that something was there before."""
    return root_key(NO_ADAPTER, share, request.cache_salt or "")


def request_prompt(
    model: ServedModel,
    request: ChatRequest,
    images: Sequence[PromptImage] = (),
    share: Share = NO_KEY,
) -> Prompt:
    """Returns the prompt of a chat's conversation and tools. Raises like `prepare_chat`."""
    return chat_prompt(
        model,
        request.messages,
        images=images,
        tools=offered_tools(request),
        template_arguments=_template_arguments(request),
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        known=model.encoded_texts.of(asker_key(request, share)),
    )


def _template_arguments(request: ChatRequest) -> dict[str, Any]:
    """Variables for the template: gpt-oss reads the effort, most others whether to think."""
    given = request.chat_template_kwargs or {}
    if request.reasoning_effort is None:
        return given
    effort = request.reasoning_effort
    return {"reasoning_effort": effort, "enable_thinking": effort != "none", **given}


def chat_prompt(
    model: ServedModel,
    messages: Sequence[Message],
    *,
    template_arguments: dict[str, Any] | None,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    images: Sequence[PromptImage] = (),
    tools: Sequence[dict[str, Any]] = (),
    known: OwnTexts | None = None,
) -> Prompt:
    """Renders a conversation as a prompt, through the model's chat template.

    Args:
        model: the model.
        messages: of the conversation.
        template_arguments: what else the template reads.
        add_generation_prompt: whether the prompt ends with the beginning of an answer.
        continue_final_message: whether it ends within the last message.
        images: of the conversation, in their order.
        tools: functions that may be called.
        known: as for `Tokenizer.encode_trusted`.

    Raises:
        InvalidParameter: the conversation makes no sense, or the template refuses it.
        UnsupportedFeature: it has content that the model does not take.
    """
    if not messages:
        raise InvalidParameter("'messages' must not be empty.", param="messages")
    if add_generation_prompt is None:
        add_generation_prompt = not continue_final_message
    if continue_final_message and add_generation_prompt:
        raise InvalidParameter(
            "'continue_final_message' and 'add_generation_prompt' exclude each other.",
            param="continue_final_message",
        )
    if continue_final_message and messages[-1].role != "assistant":
        raise InvalidParameter(
            "'continue_final_message' needs the last message to be the assistant's.",
            param="continue_final_message",
        )
    for name in TEMPLATE_NAMES:
        if name in (template_arguments or {}):
            raise InvalidParameter(
                f"'chat_template_kwargs' cannot set {name!r}: it is for what the template reads "
                "besides the conversation, the tools and where the prompt ends.",
                param=f"chat_template_kwargs.{name}",
            )
    prepared = [_template_message(model, m, f"messages[{i}]") for i, m in enumerate(messages)]
    template = model.templates.select(with_tools=bool(tools))
    if tools and "tools" not in template.source:
        prepared.insert(0, {"role": "system", "content": tools_as_text(tools)})
    try:
        rendered = template.render(
            prepared,
            tools=tools or None,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=bool(continue_final_message),
            variables=template_arguments,
        )
    except BadTemplate as error:  # it worked when the model was loaded: this input is too much
        raise InvalidParameter(error.message, param="messages") from error
    if images and model.vision is not None:
        return prompt_with_images(model.tokenizer, rendered, model.vision, images)
    return token_prompt(encode_prompt(model.tokenizer, rendered, known=known))


def _template_message(model: ServedModel, message: Message, path: str) -> dict[str, Any]:
    """Converts a message for chat templates: plain values, absent fields left out."""
    if message.content is None and message.role != "assistant":
        raise InvalidParameter(f"'{path}.content' must not be null.", param=f"{path}.content")
    # `developer` is what OpenAI calls a system message for its reasoning models.
    role = "system" if message.role == "developer" else message.role
    result: dict[str, Any] = {"role": role, "content": _content(model, message.content, path)}
    if message.tool_calls:
        # Arguments stay JSON text, valid or not: a model wrote them, and the client only repeats.
        result["tool_calls"] = msgspec.to_builtins(message.tool_calls)
    for name in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, name)
        if value is not None:
            result[name] = value
    return result


def _content(
    model: ServedModel, content: str | list[ContentPart] | None, path: str
) -> str | list[dict[str, str]]:
    if content is None or isinstance(content, str):
        return content or ""
    parts = []
    for i, part in enumerate(content):
        where = f"{path}.content[{i}]"
        if part.type == IMAGE:
            check_takes_images(model, placed(part.image_url, f"{where}.{IMAGE}"))
            parts.append({"type": "image"})
            continue
        if part.type != "text":
            raise UnsupportedFeature(
                f"Content of type {part.type!r} is not supported; only 'text' and '{IMAGE}' are.",
                param=where,
            )
        if part.text is None:
            raise InvalidParameter(f"'{where}.text' is missing.", param=f"{where}.text")
        parts.append({"type": "text", "text": part.text})
    return parts
