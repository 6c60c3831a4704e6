"""Chat templates: a conversation in, a prompt out in which only the template can write markup."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

import jinja2
from jinja2.exceptions import SecurityError

from rocmforge.errors import BadTemplate, InvalidParameter, UnsupportedFeature
from rocmforge.text.template.budget import Budget, LimitReached, Limits
from rocmforge.text.template.conversation import (
    cut_at_mark,
    flattened,
    mark_end,
    with_parsed_arguments,
    with_reasoning,
)
from rocmforge.text.template.dialect import Refused, RenderEnvironment
from rocmforge.text.template.harmony import (
    for_harmony,
    known_effort,
    restored,
    writes_harmony,
)
from rocmforge.text.template.tracked import TrackedText, trust_of
from rocmforge.text.tokenizer.encoded_texts import OwnTexts
from rocmforge.text.tokenizer.tokenizer import Tokenizer

Message = Mapping[str, Any]

_LONGEST_SOURCE = 1_000_000

# Templates build markup out of a role, as in `'<|' + message['role'] + '|>'`; these are no client's
# invention. Any other role is text.
_ROLES = frozenset(
    [
        *("assistant", "context", "developer", "documents", "function", "ipython", "model"),
        *("system", "tool", "tool_response", "user"),
    ]
)


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A rendered conversation.

    Attributes:
        text: The prompt as the template wrote it.
        trust: A byte per character: 1 where the template wrote it, 0 where a client did.
    """

    text: str
    trust: bytes

    def trusts(self, start: int, end: int) -> bool:
        """Returns whether the template wrote all these characters."""
        return self.trust.find(0, start, end) < 0


def encode_prompt(
    tokenizer: Tokenizer,
    prompt: RenderedPrompt,
    *,
    add_bos: bool = False,
    known: OwnTexts | None = None,
) -> array[int]:
    """Tokenises a prompt: spellings of control tokens count only where the template wrote them.

    Otherwise the text is tokenised as one: without such spellings in client text, the ids are
    those of `tokenizer.encode(prompt.text, parse_special=True)`.

    Args:
        tokenizer: The model's tokenizer.
        prompt: The prompt.
        add_bos: Whether to put BOS in front. As in Transformers, that is the template's business
            otherwise.
        known: As for `Tokenizer.encode_trusted`.
    """
    return tokenizer.encode_trusted(prompt.text, prompt.trusts, add_bos=add_bos, known=known)


class ChatTemplate:
    """One compiled template. Immutable, and safe to use from several threads.

    Attributes:
        source: What it was compiled from.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        *,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile a template and find out what kind of content it takes.

        Args:
            source: Jinja, in Hugging Face's dialect.
            special_tokens: What the template knows as `bos_token`, `eos_token` and so on.
            limits: What one rendering may cost.
            clock: Seconds, monotonic.
            now: The local time, for templates that write the date.

        Raises:
            BadTemplate: the template does not compile, or misbehaves on the simplest conversation.
        """
        self.source = source
        self._is_harmony = writes_harmony(source)
        self._limits = limits or Limits()
        self._clock = clock
        self._now = now
        self._special_tokens = {
            name: TrackedText.trusted(token) for name, token in special_tokens.items()
        }
        if len(source) > _LONGEST_SOURCE:
            raise BadTemplate(
                f"The chat template has {len(source)} characters; the limit is {_LONGEST_SOURCE}."
            )
        try:
            source.encode()
            self._code = self._environment().code(source)
        except jinja2.TemplateSyntaxError as error:
            raise BadTemplate(
                f"The chat template does not compile: line {error.lineno}: {error.message}"
            ) from error
        except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
            # What Jinja accepts can still be too deep, or too large, for Python.
            raise BadTemplate(f"The chat template does not compile: {error}") from error
        takes_strings = self._shows(_PROBE)
        takes_parts = self._shows([{"type": "text", "text": _PROBE}])
        # A template that shows neither wants a more special conversation: leave content alone.
        self._flattens = takes_strings and not takes_parts
        self._wraps = takes_parts and not takes_strings

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """Renders a conversation.

        Args:
            messages: role, content (a string, or a list of parts), and what else the template
                reads: name, tool_calls, tool_call_id, reasoning_content. Text parts are joined by
                newlines for templates that only take strings. Arguments of tool calls may be given
                as JSON text, as the API has them.
            tools: Function definitions.
            documents: For templates that take some.
            add_generation_prompt: Whether the prompt ends with the beginning of an answer.
            continue_final_message: Whether the prompt ends within the last message, so that the
                model continues it. Excludes `add_generation_prompt`.
            variables: Anything else the template reads, such as `enable_thinking`.

        Raises:
            InvalidParameter: the template refuses this conversation, or cannot render it.
            BadTemplate: the template does something it must not, or exceeds its limits.
        """
        if not messages:
            raise InvalidParameter("The conversation has no messages.", param="messages")
        if continue_final_message and add_generation_prompt:
            raise InvalidParameter(
                "continue_final_message and add_generation_prompt exclude each other.",
                param="continue_final_message",
            )
        given = dict(variables or {})
        given.update(tools=tools, documents=documents, add_generation_prompt=add_generation_prompt)
        conversation = [self._message(message) for message in messages]
        if self._is_harmony:
            conversation, given = for_harmony(conversation), known_effort(given)
        if continue_final_message:
            mark_end(conversation[-1])
        rendered = self._render_tool_calls(conversation, given)
        if continue_final_message:
            rendered = cut_at_mark(rendered)
        if self._is_harmony:
            rendered = restored(rendered)
        return RenderedPrompt(str.__str__(rendered), trust_of(rendered))

    def _environment(self) -> RenderEnvironment:
        return RenderEnvironment(Budget(self._limits, self._clock), self._now)

    def _message(self, message: Message) -> dict[str, Any]:
        prepared = dict(message)
        role = prepared.get("role")
        if role in _ROLES:
            prepared["role"] = TrackedText.trusted(str(role))
        content = prepared.get("content")
        if isinstance(content, list) and self._flattens:
            prepared["content"] = flattened(content)
        elif isinstance(content, str) and self._wraps:
            prepared["content"] = [{"type": "text", "text": content}]
        return with_reasoning(prepared)

    def _render_tool_calls(self, conversation: list[dict[str, Any]], given: dict[str, Any]) -> str:
        """Render with the arguments of tool calls as objects; with text where that fails.

        Clients send JSON text. Most templates want the object, some only add up strings.
        """
        parsed = [with_parsed_arguments(message) for message in conversation]
        if parsed == conversation:
            return self._run({**given, "messages": conversation})
        try:
            return self._run({**given, "messages": parsed})
        except InvalidParameter as error:
            if not isinstance(error.__cause__, TypeError):
                raise
            return self._run({**given, "messages": conversation})

    def _run(self, variables: dict[str, Any]) -> str:
        environment = self._environment()
        template = jinja2.Template.from_code(environment, self._code, environment.globals)
        try:
            return environment.concat(template.generate({**self._special_tokens, **variables}))
        except Refused as error:
            raise InvalidParameter(
                f"The chat template refuses this conversation: {error.message}", param="messages"
            ) from error
        except LimitReached as error:
            raise BadTemplate(f"The chat template was stopped: {error}.") from error
        except SecurityError as error:
            raise BadTemplate(
                f"The chat template does something that is not allowed: {error.message}"
            ) from error
        except (RecursionError, MemoryError) as error:
            raise BadTemplate("The chat template was stopped: it recursed too deeply.") from error
        except (
            jinja2.TemplateError,
            ArithmeticError,
            AssertionError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:
            raise InvalidParameter(
                f"The chat template cannot render this conversation: {error}", param="messages"
            ) from error

    def _shows(self, content: object) -> bool:
        """Checks whether content of this form reaches the prompt as text."""
        message = {"role": TrackedText.trusted("user"), "content": content}
        variables = {"messages": [message], "tools": None, "documents": None}
        try:
            text = self._run({**variables, "add_generation_prompt": True})
        except InvalidParameter:
            return False  # it wants more than this; a real conversation may have it
        return _PROBE in text and "'type'" not in text and '"type"' not in text


_PROBE = "What shape does content have?"


class ChatTemplates:
    """The templates of a model: a default, and named ones for special uses."""

    def __init__(self, templates: Mapping[str, ChatTemplate]) -> None:
        """Use `compile`."""
        self._templates = dict(templates)

    @classmethod
    def compile(
        cls,
        sources: Mapping[str, str],
        tokenizer: Tokenizer,
        *,
        override: str | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = datetime.now,
    ) -> Self:
        """Compiles the templates of a model.

        Args:
            sources: By name; "default" is for all uses that have none of their own.
            tokenizer: The model's tokenizer.
            override: A template to use instead of all of them.
            limits: What one rendering may cost.
            clock: Seconds, monotonic.
            now: The local time.

        Raises:
            BadTemplate: a template does not compile.
        """
        if override is not None:
            sources = {"default": override}
        special_tokens = tokenizer.special_tokens()
        return cls(
            {
                name: ChatTemplate(source, special_tokens, limits=limits, clock=clock, now=now)
                for name, source in sources.items()
            }
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The templates there are; empty if the model cannot chat."""
        return tuple(self._templates)

    def select(self, *, with_tools: bool = False) -> ChatTemplate:
        """Selects the template: with tools, the one named `tool_use` if there is one.

        Raises:
            UnsupportedFeature: there is no template.
        """
        wanted = ("tool_use", "default") if with_tools else ("default",)
        for name in wanted:
            if name in self._templates:
                return self._templates[name]
        raise UnsupportedFeature(
            "This model has no chat template, so it can complete text but not chat. "
            "Start the server with --chat-template FILE to give it one.",
            param="messages",
        )
