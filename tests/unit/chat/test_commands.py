"""The commands of a conversation."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from rocmforge.commands.chat.commands import COMMANDS, run_command
from rocmforge.commands.chat.conversation import Conversation, Exchange
from rocmforge.commands.chat.rendering import Screen
from rocmforge.commands.chat.session import Session
from rocmforge.commands.chat.values import USUAL
from rocmforge.errors import ConfigurationError, RocmForgeError
from tests.unit.chat.responders import Measured, OneModel, saying

TALKED = Conversation(system="Be brief.", exchanges=(Exchange("a?", "A.", "hm"),))


@pytest.fixture
def talk() -> Session:
    return Session(Measured(context=1000), Screen(sys.stdout, sys.stderr), TALKED, {})


def told(talk: Session, line: str) -> str | None:
    return asyncio.run(run_command(talk, line))


@pytest.mark.parametrize("message", ["hello", " /help", "/etc/passwd has which users?", "1/2"])
def test_other_messages_go_to_the_model(talk: Session, message: str) -> None:
    assert told(talk, message) is None


def test_help_names_every_command(talk: Session) -> None:
    shown = told(talk, "/help") or ""
    assert [name for command in COMMANDS for name in command.names if name not in shown] == []


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("/hlep", "Did you mean /help"), ("/zzz", "/help shows commands"), ("/", "/help shows")],
)
def test_an_unknown_command_asks_what_was_meant(talk: Session, typed: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=meant) as error:
        told(talk, typed)
    assert f"{typed} is not a command." in error.value.message


def test_text_behind_a_command_that_takes_none_is_not_ignored(talk: Session) -> None:
    with pytest.raises(ConfigurationError, match="/clear takes nothing behind it"):
        told(talk, "/clear everything")


def test_clear_keeps_the_system_message(talk: Session) -> None:
    told(talk, "/clear")
    assert talk.conversation == Conversation(system="Be brief.")


def test_the_system_message_is_shown_changed_and_removed(talk: Session) -> None:
    assert told(talk, "/system") == "System message: Be brief."
    told(talk, "/system Be kind.\nBe long.")
    assert talk.conversation.system == "Be kind.\nBe long."
    told(talk, '/system ""')
    assert talk.conversation.system is None
    assert talk.conversation.exchanges == TALKED.exchanges


def test_set_alone_shows_every_value(talk: Session) -> None:
    shown = (told(talk, "/set") or "").splitlines()
    assert [line.split()[0] for line in shown] == list(USUAL)
    assert "temperature         1.0 (default)" in shown[0]


def test_set_changes_a_value_and_takes_it_back(talk: Session) -> None:
    assert "temperature         0.3\n" in (told(talk, "/set temperature 0.3") or "")
    assert "temperature         1.0 (default)\n" in (told(talk, "/set temperature default") or "")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("/set temperature", "Write /set NAME VALUE"),
        ("/set temperature hot", "a number from 0 to 2"),
        ("/set temperature nan", "a number from 0 to 2"),
        ("/set top_k 1.5", "a whole number"),
        ("/set reasoning_effort huge", "none, minimal, low, medium, high"),
        ("/set temprature 1", "Did you mean temperature"),
        ("/set model other", "model cannot be set"),
    ],
)
def test_set_says_what_a_value_must_be(talk: Session, line: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        told(talk, line)


def test_a_conversation_is_saved_and_loaded(talk: Session, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    told(talk, f"/save {path}")
    told(talk, "/clear")
    told(talk, "/system Be loud.")
    assert told(talk, f"/load {path}") == "Loaded: 1 questions with their answers."
    assert talk.conversation == TALKED


def test_a_saved_conversation_is_for_its_owner(talk: Session, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    told(talk, f"/save {path}")
    assert path.stat().st_mode & 0o777 == 0o600
    told(talk, f"/save {path}")  # a conversation may be saved again
    assert [*tmp_path.iterdir()] == [path]


def test_other_files_are_not_overwritten(talk: Session, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(ConfigurationError, match="is not overwritten"):
        told(talk, f"/save {path}")
    assert path.read_text() == "mine"


def test_a_folder_that_does_not_exist_is_named(talk: Session, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none/talk\.json cannot be written: No such"):
        told(talk, f"/save {tmp_path}/none/talk.json")


HEAD = '{"format": "rocmforge-conversation", "version": 1, "model": "m", "messages": '


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "cannot be read: No such file"),
        (b"", "not a conversation that /save has written"),
        (b"\xff\xfe", "not a conversation that /save has written"),
        (b'{"messages": []}', "missing required field"),
        (HEAD.replace("1", "2").encode() + b"[]}", "version"),
        (HEAD.encode() + b'[{"role": "tool", "content": "a"}]}', "messages"),
        (HEAD.encode() + b'[{"role": "user", "content": "a"}]}', "must take turns"),
        (HEAD.encode() + b'[{"role": "user", "content": 3}]}', r"Expected `str \| array`"),
        (
            HEAD.encode() + b'[{"role": "user", "content": [{"type": "image_url", "image_url": '
            b'{"url": "https://example.com/a.png"}}]}]}',
            "data:image",
        ),
    ],
)
def test_a_bad_file_is_refused_and_the_conversation_stays(
    talk: Session, tmp_path: Path, content: bytes | None, what: str
) -> None:
    path = tmp_path / "talk.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=what):
        told(talk, f"/load {path}")
    assert talk.conversation == TALKED


def test_a_folder_is_no_conversation(talk: Session, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a file"):
        told(talk, f"/load {tmp_path}")


def test_model_lists_the_models_and_switches(talk: Session) -> None:
    assert told(talk, "/model") == "* measured\n  other"
    assert told(talk, "/model other") == "other answers from now on."
    assert talk.responder.model == "other"


def test_a_system_message_that_the_next_model_does_not_take_is_not_lost_in_silence() -> None:
    responder = Measured(context=1000)
    talk = Session(responder, Screen(sys.stdout, sys.stderr), TALKED, {})
    responder.chats = False
    assert (told(talk, "/model other") or "").endswith("The system message is not used.")
    assert talk.conversation.system == "Be brief."


def test_a_model_that_cannot_be_used_changes_nothing() -> None:
    talk = Session(OneModel(saying("a")), Screen(sys.stdout, sys.stderr), TALKED, {})
    with pytest.raises(RocmForgeError, match="does not exist"):
        told(talk, "/model none")
    assert talk.responder.model == "tiny"


@pytest.mark.parametrize("line", ["/bye", "/exit"])
def test_bye_ends_the_program(talk: Session, line: str) -> None:
    with pytest.raises(EOFError):
        told(talk, line)
