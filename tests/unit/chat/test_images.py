"""Images in a conversation of the terminal."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from rocmforge.commands.chat.commands import run_command
from rocmforge.commands.chat.conversation import Conversation
from rocmforge.commands.chat.images import is_image
from rocmforge.commands.chat.local import LocalModel
from rocmforge.commands.chat.prompt import whole_prompt
from rocmforge.commands.chat.rendering import Screen
from rocmforge.commands.chat.session import Session
from rocmforge.errors import ConfigurationError, InvalidParameter
from rocmforge.pixels.readers import ImageReaders
from tests.api.fake_engine import FakeEngine, make_model, requested
from tests.support.files.pictures import data_address, encoded, picture
from tests.support.models.vision import VISION, shown, vision_text
from tests.unit.chat.responders import Measured, OneModel, saying

FILE = encoded(picture(64, 32))
ADDRESS = data_address(FILE)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "a picture.png"
    path.write_bytes(FILE)
    return path


def talk(responder: Measured) -> Session:
    return Session(responder, Screen(sys.stdout, sys.stderr), Conversation(), {})


def test_an_image_goes_with_the_next_message_and_stays_in_the_conversation(image: Path) -> None:
    responder = Measured(context=1000)
    session = talk(responder)
    assert asyncio.run(run_command(session, f"/image {image}")) == (
        "a picture.png goes with your next message."
    )
    asyncio.run(session.ask("What is it?"))
    asyncio.run(session.ask("And now?"))
    content = [
        {"type": "image_url", "image_url": {"url": ADDRESS}},
        {"type": "text", "text": "What is it?"},
    ]
    assert responder.turns[0].messages == [{"role": "user", "content": content}]
    assert responder.turns[1].messages == [
        {"role": "user", "content": content},
        {"role": "assistant", "content": "fine"},
        {"role": "user", "content": "And now?"},
    ]


def test_images_are_saved_with_the_conversation(image: Path, tmp_path: Path) -> None:
    session = talk(Measured(context=1000))
    session.add_image(image)
    asyncio.run(session.ask("What is it?"))
    before = session.conversation
    asyncio.run(run_command(session, f"/save {tmp_path / 'talk.json'}"))
    asyncio.run(run_command(session, "/clear"))
    asyncio.run(run_command(session, f"/load {tmp_path / 'talk.json'}"))
    assert session.conversation == before
    assert before.exchanges[0].images == (ADDRESS,)


def test_what_is_no_image_is_refused(image: Path, tmp_path: Path) -> None:
    session = talk(Measured(context=1000))
    text = tmp_path / "notes.txt"
    text.write_text("mine")
    with pytest.raises(ConfigurationError, match=r"notes\.txt is no JPEG, PNG, WebP or GIF"):
        session.add_image(text)
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        session.add_image(tmp_path / "none.png")
    assert [is_image(path) for path in (image, text, tmp_path / "none.png")] == [True, False, False]


@pytest.mark.parametrize("written", ["'{}'", '"{}"', "{}"])
def test_a_path_may_be_written_as_terminals_paste_it(image: Path, written: str) -> None:
    session = talk(Measured(context=1000))
    for path in (written.format(image), str(image).replace(" ", r"\ ")):
        told = asyncio.run(run_command(session, f"/image {path}"))
        assert told == "a picture.png goes with your next message."
    with pytest.raises(ConfigurationError, match=r"no picture'\.png cannot be read"):
        asyncio.run(run_command(session, f"/image {image.parent}/no picture'.png"))


def test_a_file_that_is_neither_text_nor_image_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    path = tmp_path / "a.heic"
    path.write_bytes(b"\0\0\0\x18ftypheic\xff")
    with pytest.raises(ConfigurationError, match=r"not text in UTF-8.*Nor is it a JPEG, PNG"):
        whole_prompt("What?", [path])


def test_a_model_of_text_takes_none(image: Path) -> None:
    session = Session(OneModel(saying("a")), Screen(sys.stdout, sys.stderr), Conversation(), {})
    with pytest.raises(ConfigurationError, match="tiny takes no images"):
        session.add_image(image)


@pytest.mark.slow
def test_a_model_of_our_own_sees_the_image(image: Path, tmp_path: Path) -> None:
    engine, readers = FakeEngine(), ImageReaders()
    tokenizer, templates = vision_text()
    served = make_model(engine, tokenizer=tokenizer, templates=templates, vision=VISION)
    model = LocalModel(requested(served), readers)
    session = Session(model, Screen(sys.stdout, sys.stderr), Conversation(), {})  # type: ignore[arg-type]
    try:
        session.add_image(image)
        asyncio.run(session.ask("What?"))
        rows = "<around>r1c1[1]<around>r1c2[1]\n\n<around>w[1]<around>"
        text = shown(engine.submitted[0].prompt, tokenizer)
        assert text.startswith(f"<|im_start|>user\n{rows}What?<|im_end|>")
        damaged = tmp_path / "b.png"
        damaged.write_bytes(FILE[:50])
        session.add_image(damaged)
        with pytest.raises(InvalidParameter, match="The image is a damaged PNG file"):
            asyncio.run(session.ask("And this?"))
        asyncio.run(session.ask("Without?"))
        assert shown(engine.submitted[1].prompt, tokenizer).count("[1]") == 3
    finally:
        readers.close()
