"""Derives what an engine is told from the settings and the model that it serves."""

from __future__ import annotations

import string
from pathlib import Path

from rocmforge.backend.protocol import LoadOptions
from rocmforge.engine.client.config import EngineConfig
from rocmforge.engine.client.verifier import ProofConfig
from rocmforge.engine.context import LEAST_CONTEXT
from rocmforge.engine.ipc.params import TokenPieces
from rocmforge.engine.ipc.tier_options import TierOptions
from rocmforge.engine.proof.messages import BundlePolicy
from rocmforge.model_front import ModelFront, adapter_specs
from rocmforge.models.vision.config import VisionConfig
from rocmforge.settings import AUTO, Settings
from rocmforge.sizes import parse_size
from rocmforge.text.tokenizer.tokenizer import Tokenizer


def engine_config(front: ModelFront, settings: Settings) -> EngineConfig:
    """Derives an engine's configuration from the settings."""
    is_optional = front.config.predicts and settings.draft_model == AUTO
    return EngineConfig(
        backend=settings.backend,
        model=front.path,
        name=front.names[0],
        identity=front.identity,
        draft=front.draft,
        predicts=front.config.predicts,
        mmproj=settings.mmproj_path,
        drafts_without_predictor=settings.prompt_lookup_tokens if is_optional else None,
        options=load_options(
            settings,
            front.config.max_context,
            causal=front.config.causal,
            has_drafter=front.has_drafter,
            vision=front.vision,
        ),
        vocabulary=token_pieces(front.tokenizer) if front.config.causal else None,
        max_waiting=settings.max_waiting,
        max_stall_ns=round(1e6 * settings.max_stall),
        tiers=tier_options(settings),
        resume=settings.resume,
        log_level=settings.log_level.upper(),
        log_format=settings.log_format,
        step_timeout_s=settings.step_timeout,
        load_timeout_s=settings.load_timeout,
        restart_limit=settings.restart_limit,
    )


def proof_config(settings: Settings) -> ProofConfig:
    """Derives what is verified of a model's answers, and what it may cost."""
    bundles = None
    if settings.verify_bundles is not None:
        folder = str(Path(settings.verify_bundles).absolute())
        bundles = BundlePolicy(folder=folder, keeps_tokens=settings.verify_prompts)
    return ProofConfig(
        rate=settings.verify_rate,
        seconds=settings.verify_seconds,
        tolerance=settings.verify_tolerance,
        is_strict=settings.verify_action == "not-ready",
        bundles=bundles,
    )


def tier_options(settings: Settings) -> TierOptions:
    """Derives where KV blocks go that the device gives up.

    Raises:
        ConfigurationError: a size is none.
    """
    return TierOptions(
        host_bytes=0 if settings.host_cache is None else parse_size(settings.host_cache),
        folder=None if settings.cache_dir is None else str(Path(settings.cache_dir).absolute()),
        folder_bytes=parse_size(settings.cache_dir_size),
    )


def load_options(
    settings: Settings,
    trained_context: int,
    *,
    causal: bool,
    has_drafter: bool = False,
    vision: VisionConfig | None = None,
) -> LoadOptions:
    """Derives load options, for a model trained with a context of `trained_context` tokens.

    Unless the model is causal, a step has room for the longest prompt, which cannot be cut, and
    for an image that cannot be cut beside all sequences.
    Without --max-context, the context may be lowered to what fits. There is room for draft tokens
    of a draft model or predictor if it has one.
    """
    context = min(settings.max_context or trained_context, trained_context)
    may_be_lowered = causal and settings.max_context is None
    of_image = 0 if vision is None else vision.whole_rows
    least_tokens = max(settings.max_sequences + of_image, 0 if causal else context)
    drafted = settings.draft_tokens if has_drafter else 0
    return LoadOptions(
        device=settings.device,
        max_context=context,
        least_context=min(LEAST_CONTEXT, context) if may_be_lowered else None,
        max_sequences=settings.max_sequences,
        state_snapshots=settings.state_snapshots,
        max_batched_tokens=max(settings.max_batched_tokens, least_tokens),
        kv_blocks=settings.kv_blocks,
        kv_dtype=settings.kv_dtype,
        activation_bits=settings.activation_bits,
        graphs=settings.graphs,
        draft_tokens=max(settings.prompt_lookup_tokens, drafted),
        decode_variant=settings.decode_variant,
        shared_prefix=settings.shared_prefix,
        device_experts=settings.device_experts,
        memory_utilization=settings.memory_utilization,
        tensor_parallel=settings.tensor_parallel,
        adapters=adapter_specs(settings),
        releases_windows=True,
    )


def token_pieces(tokenizer: Tokenizer) -> TokenPieces | None:
    """Returns the vocabulary for constrained sampling.

    None if no token could end an answer, or if there is a character that no token spells alone: a
    grammar may leave no other choice than that character.
    """
    pieces = tokenizer.piece_tables(skip_special=False).data
    alone = {bytes([byte]) for byte in (string.printable.strip() + " \t\n").encode()}
    if not tokenizer.eos_ids or not alone <= set(pieces):
        return None
    return TokenPieces(
        pieces=pieces,
        special_ids=tuple(sorted(tokenizer.special_ids)),
        eos_ids=tokenizer.eos_ids,
    )
