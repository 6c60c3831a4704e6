"""The line on which people write: editing, history, and messages of several lines."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import CompleteStyle

logger = logging.getLogger(__name__)

PROMPT: Final = "> "
_MORE: Final = ". "
_FENCE: Final = '"""'
MAX_HISTORY_BYTES: Final = 1 << 20


class Editor:
    """Reads messages from a terminal.

    Args:
        commands: names that Tab completes.
        history: the file of former messages; None = they are kept only as long as this lives.
    """

    def __init__(self, commands: Sequence[str], history: Path | None) -> None:
        stream = sys.stdout if sys.stdout.isatty() else sys.stderr
        output = Vt100_Output.from_pty(stream, term=None)
        # Asking where the cursor is takes a round trip, and some terminals never answer.
        output.enable_cpr = False
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=_MORE,
            key_bindings=_bindings(),
            history=InMemoryHistory() if history is None else open_history(history),
            completer=WordCompleter(list(commands), sentence=True),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            reserve_space_for_menu=0,
            output=output,
        )

    async def read(self) -> str | None:
        r"""Returns the next message; None if the user gives up an empty one with ^C.

        Raises:
            EOFError: ^D at an empty line.
        """
        try:
            # A ^C that is a signal is not a key: whoever asked for the message cancels this.
            text = await self._session.prompt_async(handle_sigint=False)
        except KeyboardInterrupt:
            return None
        return unfenced(text)


def unfenced(text: str) -> str:
    """Returns a message without the triple quotes that hold it, or its command's text, together."""
    before, fence, block = text.partition(_FENCE)
    if not fence or (before.strip() and not before.startswith("/")):
        return text
    body, end, behind = block.partition(_FENCE)
    if not end or behind.strip():
        return text
    return before + body.strip("\n")


def is_open(text: str) -> bool:
    """Returns whether a message has triple quotes that are not closed yet."""
    begins = text.lstrip().startswith((_FENCE, "/"))
    return begins and text.count(_FENCE) % 2 == 1


def open_history(path: Path) -> History:
    """Opens the file of former messages, which only its owner may read.

    A file that has become long loses its older half. Without a file, messages are still kept for
    this conversation.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        if path.stat().st_size > MAX_HISTORY_BYTES:
            kept = path.read_bytes()[-MAX_HISTORY_BYTES // 2 :]
            path.write_bytes(kept[kept.find(b"\n# ") :])
    except OSError as error:
        logger.warning("%s: messages are not kept for the next time (%s)", path, error.strerror)
        return InMemoryHistory()
    return FileHistory(path)


def _bindings() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        # A terminal that does not mark a pasted text sends it faster than anybody types.
        if is_open(buffer.text) or event.key_processor.input_queue:
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt(), style="class:aborting")

    return keys
