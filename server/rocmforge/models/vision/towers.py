"""Towers and the markers of images, by family: what readers of files have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import msgspec

from rocmforge.errors import UnsupportedArchitecture
from rocmforge.models.config import ActivationFunction, ModelConfig, TowerConfig
from rocmforge.models.families import FAMILIES
from rocmforge.models.layer_config import LayerConfig
from rocmforge.models.pooling import PoolingType
from rocmforge.models.rope_config import PositionAxes, RopeConfig, RopeStyle, axes_of_pairs
from rocmforge.models.vision.config import ProcessorConfig, ProcessorKind, VisionConfig

_MARKERS: Final[Mapping[ProcessorKind, Mapping[str, str]]] = MappingProxyType(
    {
        ProcessorKind.IDEFICS3: {
            "marker": "<image>",
            "begin": "<fake_token_around_image>",
            "end": "<fake_token_around_image>",
            "whole": "<global-img>",
            "part": "<row_{row}_col_{column}>",
        },
        # Its templates write what the processor puts more of.
        ProcessorKind.INTERNVL: {"marker": "<IMG_CONTEXT>", "begin": "<img>", "end": "</img>"},
        ProcessorKind.GEMMA3: {
            "marker": "<start_of_image>",
            "begin": "\n\n<start_of_image>",
            "end": "<end_of_image>\n\n",
        },
        # Its templates write `marker`, and the processor what stands around the rows.
        ProcessorKind.GEMMA4: {"marker": "<|image|>", "begin": "<|image>", "end": "<image|>"},
        ProcessorKind.PIXTRAL: {
            "marker": "[IMG]",
            "begin": "",
            "between": "[IMG_BREAK]",
            "end": "[IMG_END]",
        },
        # Templates write what stands around it.
        ProcessorKind.QWEN_VL: {"marker": "<|image_pad|>", "begin": "", "end": ""},
    }
)
_BOTH_WAYS: Final = frozenset({ProcessorKind.GEMMA3})
PLACEHOLDERS: Final[Mapping[ProcessorKind, tuple[str, ...]]] = MappingProxyType(
    {
        ProcessorKind.IDEFICS3: ("<image>",),
        ProcessorKind.INTERNVL: ("<IMG_CONTEXT>",),
        # Not in all vocabularies: nothing but rows has it.
        ProcessorKind.GEMMA3: ("<image_soft_token>", "<start_of_image>"),
        ProcessorKind.GEMMA4: ("<|image|>",),
        ProcessorKind.PIXTRAL: ("[IMG]",),
        ProcessorKind.QWEN_VL: ("<|image_pad|>",),
    }
)
"""The token that stands for a row, where a file does not say its id: the first that there is."""
GEMMA4_UNIFIED: Final = "gemma4-unified-tower"
"""The architecture of the tower of Gemma 4 12B."""
_LAYER_NORM_EPS: Final = 1e-5  # of norms for which no file says it
_WHITE: Final = 255
GEMMA4_UNIT_NORMS: Final = ("attention.v_norm", "projector.norm")
"""Norms of Gemma 4's towers that have no weights."""
PIXTRAL_TOWERS: Final = frozenset({"pixtral", "pixtral-merging"})
"""The architectures of Pixtral's towers."""
WITHOUT_PLACES: Final = PIXTRAL_TOWERS | {"qwen2vl-tower", "qwen25vl-tower"}
"""Those of towers without a table of positions."""


def vision_config(
    processor: ProcessorConfig, placeholder: int, *, both_ways: bool = False
) -> VisionConfig:
    """Returns how a model takes images that are prepared in this way.

    Args:
        processor: Prepares them.
        placeholder: As `VisionConfig.placeholder`.
        both_ways: As `VisionConfig.both_ways`; of some families, it always is.
    """
    texts, both_ways = _MARKERS[processor.kind], both_ways or processor.kind in _BOTH_WAYS
    return VisionConfig(processor=processor, placeholder=placeholder, both_ways=both_ways, **texts)


def siglip_config(
    name: str,
    processor: ProcessorConfig,
    layers: tuple[LayerConfig, ...],
    *,
    hidden_size: int,
    embedding_size: int,
    norm_eps: float,
    activation: ActivationFunction,
) -> ModelConfig:
    """Returns a tower of the kind of SigLIP, or one of InternVL's, which have a class token.

    Args:
        name: For messages.
        processor: Prepares images for it.
        layers: Its layers; those of InternVL's tower of 6B norm queries and keys.
        hidden_size: Elements of its hidden states.
        embedding_size: The hidden size of the model beside it.
        norm_eps: Of its norms.
        activation: Of its networks.
    """
    places = processor.most_patches + processor.has_class
    of_internvl = "internvl-6b-tower" if layers[0].joint_head_norms else "internvl-tower"
    return _tower_config(
        of_internvl if processor.has_class else "siglip",
        name,
        layers,
        hidden_size=hidden_size,
        table=places,
        most_patches=places,
        norm_eps=norm_eps,
        rope=None,
        activation=activation,
        tower=TowerConfig(
            patch_features=processor.patch_features,
            merged=processor.merge * processor.merge,
            averages=processor.kind is ProcessorKind.GEMMA3,
            row_norm_eps=norm_eps if processor.kind is ProcessorKind.GEMMA3 else _LAYER_NORM_EPS,
            embedding_size=embedding_size,
            inner_size=embedding_size if processor.has_class else 0,
        ),
    )


def gemma4_tower_config(
    name: str,
    processor: ProcessorConfig,
    layers: tuple[LayerConfig, ...],
    *,
    hidden_size: int,
    embedding_size: int,
    norm_eps: float,
    activation: ActivationFunction,
    theta: float = 100.0,
) -> ModelConfig:
    """Returns a tower of Gemma 4; see `siglip_config`.

    Args:
        name: For messages.
        processor: Prepares images for it.
        layers: Its layers.
        hidden_size: Elements of its hidden states.
        embedding_size: The hidden size of the model beside it.
        norm_eps: Of its norms.
        activation: Of its networks, which are gated.
        theta: Of the rotation of queries and keys by rows and columns.
    """
    return _tower_config(
        "gemma4-tower",
        name,
        layers,
        hidden_size=hidden_size,
        table=2 * processor.places,
        most_patches=processor.most_patches,
        norm_eps=norm_eps,
        rope=_rope_by_axes(layers[0].key_dim, theta),
        activation=activation,
        tower=replace(
            _placed(processor, embedding_size),
            averages=True,
            # The mean is normed once it is sqrt(hidden_size) times as large.
            row_norm_eps=norm_eps / hidden_size,
        ),
    )


def gemma4_unified_config(
    name: str,
    processor: ProcessorConfig,
    *,
    hidden_size: int,
    embedding_size: int,
    row_norm_eps: float,
) -> ModelConfig:
    """Returns the tower of Gemma 4 12B, which has no layers: a patch is a row; see `siglip_config`.

    Args:
        name: For messages.
        processor: Prepares images for it, as `in_whole_numbers` says.
        hidden_size: Elements of its hidden states.
        embedding_size: The hidden size of the model beside it.
        row_norm_eps: Of its last norm.
    """
    return _tower_config(
        GEMMA4_UNIFIED,
        name,
        (),
        hidden_size=hidden_size,
        table=2 * processor.places,
        most_patches=processor.most_patches,
        norm_eps=_LAYER_NORM_EPS,
        rope=None,
        activation=ActivationFunction.GELU_TANH,
        tower=replace(
            _placed(processor, embedding_size),
            averages=True,
            row_norm_eps=row_norm_eps,
            patch_norm_eps=_LAYER_NORM_EPS * _WHITE**2,
        ),
    )


def in_whole_numbers(processor: ProcessorConfig) -> ProcessorConfig:
    """Returns a processor that gives a tower numbers 255 times as large.

    Where they are normed, the factor is lost again. In halves, whole numbers are exact, and a patch
    of almost one colour keeps what tells its pixels apart.
    """
    red, green, blue = (_WHITE * mean for mean in processor.mean)
    rescale = _WHITE * processor.rescale
    return msgspec.structs.replace(processor, rescale=rescale, mean=(red, green, blue))


def qwen_tower_config(
    name: str,
    processor: ProcessorConfig,
    layers: tuple[LayerConfig, ...],
    *,
    architecture: str,
    hidden_size: int,
    embedding_size: int,
    norm_eps: float,
    activation: ActivationFunction,
    theta: float = 10000.0,
) -> ModelConfig:
    """Returns a tower of Qwen's; see `siglip_config`.

    Args:
        name: For messages.
        processor: Prepares images for it; that of Qwen2.5-VL has windows.
        layers: Its layers; those with `merger_features` make rows for the first of the model's.
        architecture: Its row of `FAMILIES`.
        hidden_size: Elements of its hidden states.
        embedding_size: The hidden size of the model beside it.
        norm_eps: Of its norms.
        activation: Of its networks.
        theta: Of the rotation of queries and keys by rows and columns.
    """
    return _tower_config(
        architecture,
        name,
        layers,
        hidden_size=hidden_size,
        table=processor.places * processor.places,
        most_patches=processor.most_patches,
        norm_eps=norm_eps,
        rope=_rope_by_axes(layers[0].key_dim, theta),
        activation=activation,
        tower=_placed(processor, embedding_size),
    )


def pixtral_config(
    name: str,
    processor: ProcessorConfig,
    layers: tuple[LayerConfig, ...],
    *,
    hidden_size: int,
    embedding_size: int,
    norm_eps: float,
    activation: ActivationFunction,
    theta: float = 10000.0,
) -> ModelConfig:
    """Returns a tower of Pixtral or of Mistral 3; see `siglip_config`.

    It has no table of positions: what stands for one has one place, of zeros.

    Args:
        name: For messages.
        processor: Prepares images for it.
        layers: Its layers.
        hidden_size: Elements of its hidden states.
        embedding_size: The hidden size of the model beside it.
        norm_eps: Of its norms.
        activation: Of its networks, which are gated.
        theta: Of the rotation of queries and keys by rows and columns, whose frequencies alternate.
    """
    return _tower_config(
        "pixtral-merging" if processor.merge > 1 else "pixtral",
        name,
        layers,
        hidden_size=hidden_size,
        table=processor.places,
        most_patches=processor.most_patches,
        norm_eps=norm_eps,
        rope=_rope_by_axes(layers[0].key_dim, theta, shift=0.5),
        activation=activation,
        tower=replace(
            _placed(processor, embedding_size),
            merges_first=processor.merge > 1,
            inner_size=embedding_size,
        ),
    )


def _tower_config(
    architecture: str,
    name: str,
    layers: tuple[LayerConfig, ...],
    *,
    hidden_size: int,
    table: int,
    most_patches: int,
    norm_eps: float,
    rope: RopeConfig | None,
    activation: ActivationFunction,
    tower: TowerConfig,
) -> ModelConfig:
    """Returns a tower with what its family says; `table` is the rows of its table of positions."""
    family = FAMILIES[architecture]
    return ModelConfig(
        architecture=architecture,
        name=name,
        causal=family.causal,
        hidden_size=hidden_size,
        vocab_size=table,
        max_context=most_patches,
        layers=layers,
        norm=family.norm,
        norm_eps=norm_eps,
        pre_norm=family.pre_norm,
        rope=rope,
        activation=activation,
        pooling=PoolingType.NONE,
        tower=tower,
    )


def _placed(processor: ProcessorConfig, embedding_size: int) -> TowerConfig:
    """Returns what towers have in common whose patches have a row and a column."""
    return TowerConfig(
        patch_features=processor.patch_features,
        merged=processor.merge * processor.merge,
        embedding_size=embedding_size,
        places=processor.places,
    )


def _rope_by_axes(head_dim: int, theta: float, shift: float = 0.0) -> RopeConfig:
    """Returns a rotation by the rows and columns of patches; see `RopeConfig.axes_shift`."""
    return RopeConfig(
        style=RopeStyle.NEOX,
        rotary_dim=head_dim,
        theta=theta,
        scaling=None,
        axes=axes_of_pairs((head_dim // 4, head_dim // 4), PositionAxes.SECTIONS),
        axes_restart=True,
        axes_shift=shift,
    )


def beside_tower(config: ModelConfig, tower: ModelConfig, vision: VisionConfig) -> ModelConfig:
    """Returns a model with what it does with the rows of its tower.

    Raises:
        UnsupportedArchitecture: The model has one position for a row and its column, though the
            tower is made for one that has two; or the tower makes rows for layers that it lacks.
    """
    if vision.processor.has_axes and (config.rope is None or not config.rope.axes):
        raise UnsupportedArchitecture(
            f"images for {config.architecture} without positions on several axes",
            ("models whose files say which pairs of a head belong to which axis",),
        )
    if tower.row_parts > config.num_layers:
        raise UnsupportedArchitecture(
            f"a tower with rows for {tower.row_parts - 1} inner layers of {config.num_layers}",
            ("fewer of them",),
        )
    layers = config.layers
    if FAMILIES[config.architecture].sees_ahead_in_windows:
        layers = tuple(replace(each, sees_ahead=each.window is not None) for each in layers)
    return replace(config, layers=layers, deepstack=tower.row_parts - 1)
