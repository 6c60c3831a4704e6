"""Reads what the server process needs of a model's files, before an engine process is started."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from rocmforge.errors import ConfigurationError, naming
from rocmforge.library.finding import default_names, find_model
from rocmforge.models.checkpoint import Checkpoint, Identity
from rocmforge.models.config import ModelConfig
from rocmforge.models.lora import AdapterSpec, parse_adapters
from rocmforge.models.memory import stored_weight_bytes
from rocmforge.models.rank_head import RankHead, read_rank_head
from rocmforge.models.sampling import UNRECOMMENDED, SamplingDefaults
from rocmforge.models.vision.config import VisionConfig
from rocmforge.opening import open_checkpoint
from rocmforge.settings import AUTO, MTP, NO_DRAFT_MODEL, Settings
from rocmforge.text.template.rank_prompt import rank_prompt
from rocmforge.text.template.template import ChatTemplates
from rocmforge.text.tokenizer.draft_vocabulary import check_draft_vocabulary
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from rocmforge.text.tokenizer.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFront:
    """The parts of a model file that the server process needs; the weights stay in the engine's."""

    path: Path
    identity: Identity
    names: tuple[str, ...]  # what clients may call it; the first is shown
    tokenizer: Tokenizer
    templates: ChatTemplates
    config: ModelConfig
    vision: VisionConfig | None  # how it takes images
    rank_head: RankHead | None  # of a decoder
    sampling: SamplingDefaults
    adapters: tuple[str, ...]  # what clients may call the LoRA adapters
    draft: Path | None  # the draft model
    weights_bytes: int  # as they are in the files, with the draft model's and the tower's

    @property
    def has_drafter(self) -> bool:
        """Whether a draft model or a predictor drafts tokens."""
        return self.draft is not None or self.config.predicts

    def check_generates(self) -> None:
        """Raises ConfigurationError for an encoder, or what ranks only: it generates no text."""
        causal = self.config.causal
        if not causal or (self.rank_head is not None and self.rank_head.is_all):
            what = "only ranks" if causal else "is an encoder"
            raise ConfigurationError(
                f"{self.names[0]} {what}: it generates no text. Use it with rocmforge serve."
            )


def read_front(model: str, settings: Settings, found: Path | None = None) -> ModelFront:
    """Finds a model, reads tokenizer and templates, and refuses what the engine would refuse.

    Args:
        model: the path of a model, or a name.
        settings: its names and template.
        found: what that stands for; None = look for it.

    Raises:
        ModelLoadError: the file cannot be served; found before anything is started.
        ConfigurationError: the file of --chat-template cannot be read.
    """
    path = found or find_model(model)
    with naming(path), open_model(path, settings) as checkpoint:
        config, vision = checkpoint.config, checkpoint.vision
        identity = checkpoint.identify()
        tokenizer = Tokenizer(checkpoint.read_tokenizer())
        templates = ChatTemplates.compile(
            checkpoint.chat_templates,
            tokenizer,
            override=settings.chat_template and _read_template(settings.chat_template),
        )
        if not config.causal:
            _refuse_drafts_and_chats(settings)
        if settings.draft_model == MTP and not config.predicts:
            raise ConfigurationError(
                f"{path.name} has no predictor of further tokens, so --draft-model {MTP} has "
                "nothing to draft with. Take a draft model, or a file with MTP in its name."
            )
        prompt = rank_prompt(templates, checkpoint.rank_instruction)
        rank_head = read_rank_head(checkpoint, prompt) if config.causal else None
        adapters = tuple(adapter.name for adapter in checkpoint.adapters)
        sampling = _sampling_defaults(checkpoint, settings)
        draft = find_draft(checkpoint, settings)
        weights_bytes = stored_weight_bytes(checkpoint.weights)
        if checkpoint.tower is not None:
            weights_bytes += stored_weight_bytes(checkpoint.tower.weights)
    if draft is not None:
        with open_checkpoint(draft) as checkpoint:
            weights_bytes += stored_weight_bytes(checkpoint.weights)
    names = settings.served_model_name or default_names(model, path)
    warn_of_context(settings, config.max_context, names[0])
    for name in adapters:
        if name in names:
            raise ConfigurationError(f"--lora {name}=...: the model has that name. Give another.")
    return ModelFront(
        path=path,
        identity=identity,
        names=names,
        tokenizer=tokenizer,
        templates=templates,
        config=config,
        vision=vision,
        rank_head=rank_head,
        sampling=sampling,
        adapters=adapters,
        draft=draft,
        weights_bytes=weights_bytes,
    )


def open_model(path: Path, settings: Settings) -> Checkpoint:
    """Opens a model with its adapters, and with its predictor if that drafts by these settings.

    Raises:
        RocmForgeError: as `open_checkpoint`.
    """
    return open_checkpoint(
        path, adapter_specs(settings), predicts=settings.predicts, mmproj=settings.mmproj_path
    )


def _refuse_drafts_and_chats(settings: Settings) -> None:
    has_drafter = settings.draft_model not in (AUTO, NO_DRAFT_MODEL)
    for flag, value in (
        ("--draft-model", has_drafter),
        ("--chat-template", settings.chat_template),
    ):
        if value:
            raise ConfigurationError(f"The model is an encoder: leave {flag} out.")


def _sampling_defaults(checkpoint: Checkpoint, settings: Settings) -> SamplingDefaults:
    """Returns what the operator says, else what the model's maker recommends."""
    defaults = checkpoint.sampling or UNRECOMMENDED
    for text in settings.sampling:
        name, _, value = text.partition("=")
        try:
            number = float(value)
        except ValueError as error:
            raise ConfigurationError(f"--sampling {text}: write it as NAME=NUMBER.") from error
        try:
            defaults = defaults.changed({name: number})
        except ValueError as error:
            raise ConfigurationError(f"--sampling {text}: {error}.") from error
    return defaults


def warn_of_context(settings: Settings, trained_context: int, name: str) -> None:
    """Logs that --max-context is more than a model was trained for; fewer are used then."""
    if settings.max_context is not None and settings.max_context > trained_context:
        logger.warning(
            "%s was trained for %d tokens: these are its context, not the %d of --max-context",
            *(name, trained_context, settings.max_context),
        )


def find_draft(model: Checkpoint, settings: Settings) -> Path | None:
    """Finds the draft model that the settings name, if any.

    Raises:
        ModelLoadError: the file cannot be served.
        ConfigurationError: it cannot draft for this model.
    """
    if settings.other_draft_model is None:
        return None
    path = find_model(settings.other_draft_model)
    with naming(path), open_checkpoint(path) as checkpoint:
        if not checkpoint.config.causal:
            raise ConfigurationError(f"{path.name} is an encoder: it cannot draft the next tokens.")
        if checkpoint.config.has_states:
            raise ConfigurationError(
                f"{path.name} cannot draft: it has states that cannot be taken back when a token "
                "of it is rejected. Take a draft model of attention alone."
            )
        check_draft_vocabulary(
            Vocabulary.of(model.read_tokenizer()), Vocabulary.of(checkpoint.read_tokenizer())
        )
    return path


def adapter_specs(settings: Settings) -> tuple[AdapterSpec, ...]:
    """Parses the LoRA adapters of the settings; raises ConfigurationError as `parse_adapters`."""
    return parse_adapters(settings.lora)


def _read_template(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"Cannot read the chat template {name}: {error}.") from error
