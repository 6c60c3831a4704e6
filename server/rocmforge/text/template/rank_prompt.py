"""The prompt of a decoder that ranks, from a chat template that knows queries and documents."""

from __future__ import annotations

import re

from rocmforge.errors import InvalidParameter, UnsupportedFeature
from rocmforge.text.template.template import ChatTemplates

_BLANKS = {"query": "{query}", "document": "{document}"}


def rank_prompt(templates: ChatTemplates, instruction: str | None) -> str | None:
    """Returns the prompt with the blanks {query} and {document}; None without a template for it.

    Such templates know the roles `query` and `document`, as Sentence-Transformers has them, and
    take an instruction as the message of the system. Others write any role into the prompt.

    Raises:
        BadTemplate: The template does something it must not.
    """
    messages = [{"role": role, "content": blank} for role, blank in _BLANKS.items()]
    if instruction is not None:
        messages.insert(0, {"role": "system", "content": instruction})
    try:
        template = templates.select()
        if not all(re.search(f"['\"]{role}['\"]", template.source) for role in _BLANKS):
            return None
        prompt = template.render(messages).text
    except (InvalidParameter, UnsupportedFeature):
        return None
    return prompt if all(blank in prompt for blank in _BLANKS.values()) else None
