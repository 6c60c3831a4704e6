"""Towers and the markers of images, by family: what readers of files have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTower:
    """A tower of any kind, as its files describe it.

    Attributes:
        name: For messages.
        processor: Prepares images for it.
        hidden_size: Elements of its hidden states.
        embedding_size: The hidden size of the model beside it.
        norm_eps: Of its norms.
        layers: Its layers, if it has any.
        activation: Of their networks.
    """

    name: str
    processor: ProcessorConfig
    hidden_size: int
    embedding_size: int
    norm_eps: float
    layers: tuple[LayerConfig, ...] = ()
    activation: ActivationFunction = ActivationFunction.GELU_TANH


def siglip_config(read: ReadTower) -> ModelConfig:
    """Returns a tower of the kind of SigLIP, or one of InternVL's, which have a class token.

    Layers of InternVL's tower of 6B norm queries and keys.
    """
    processor, is_gemmas = read.processor, read.processor.kind is ProcessorKind.GEMMA3
    of_internvl = "internvl-6b-tower" if read.layers[0].joint_head_norms else "internvl-tower"
    return _tower_config(
        of_internvl if processor.has_class else "siglip",
        read,
        table=processor.most_patches + processor.has_class,
        tower=TowerConfig(
            patch_features=processor.patch_features,
            merged=processor.merge * processor.merge,
            averages=is_gemmas,
            row_norm_eps=read.norm_eps if is_gemmas else _LAYER_NORM_EPS,
            embedding_size=read.embedding_size,
            inner_size=read.embedding_size if processor.has_class else 0,
        ),
    )


def gemma4_tower_config(read: ReadTower, theta: float = 100.0) -> ModelConfig:
    """Returns a tower of Gemma 4, whose queries and keys rotate by rows and columns."""
    return _tower_config(
        "gemma4-tower",
        read,
        table=2 * read.processor.places,
        rope=_rope_by_axes(read, theta),
        tower=replace(
            _placed(read),
            averages=True,
            # The mean is normed once it is sqrt(hidden_size) times as large.
            row_norm_eps=read.norm_eps / read.hidden_size,
        ),
    )


def gemma4_unified_config(read: ReadTower) -> ModelConfig:
    """Returns the tower of Gemma 4 12B, which has no layers: a patch is a row.

    Its processor gives numbers as `in_whole_numbers` says. `norm_eps` is that of the last norm.
    """
    return _tower_config(
        GEMMA4_UNIFIED,
        replace(read, norm_eps=_LAYER_NORM_EPS),
        table=2 * read.processor.places,
        tower=replace(
            _placed(read),
            averages=True,
            row_norm_eps=read.norm_eps,
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


def qwen_tower_config(read: ReadTower, architecture: str) -> ModelConfig:
    """Returns a tower of Qwen's, whose queries and keys rotate by rows and columns.

    The processor of Qwen2.5-VL has windows. Layers with `merger_features` make rows for the first
    of the model's.

    Args:
        read: The tower.
        architecture: Its row of `FAMILIES`.
    """
    return _tower_config(
        architecture,
        read,
        table=read.processor.places * read.processor.places,
        rope=_rope_by_axes(read, 10000.0),
        tower=_placed(read),
    )


def pixtral_config(read: ReadTower, theta: float = 10000.0) -> ModelConfig:
    """Returns a tower of Pixtral or of Mistral 3.

    It has no table of positions: what stands for one has one place, of zeros. Its queries and keys
    rotate by rows and columns, whose frequencies alternate.
    """
    merges = read.processor.merge > 1
    return _tower_config(
        "pixtral-merging" if merges else "pixtral",
        read,
        table=read.processor.places,
        rope=_rope_by_axes(read, theta, shift=0.5),
        tower=replace(_placed(read), merges_first=merges, inner_size=read.embedding_size),
    )


def _tower_config(
    architecture: str,
    read: ReadTower,
    *,
    table: int,
    tower: TowerConfig,
    rope: RopeConfig | None = None,
) -> ModelConfig:
    """Returns a tower with what its family says; `table` is the rows of its table of positions."""
    family = FAMILIES[architecture]
    return ModelConfig(
        architecture=architecture,
        name=read.name,
        causal=family.causal,
        hidden_size=read.hidden_size,
        vocab_size=table,
        max_context=read.processor.most_patches + read.processor.has_class,
        layers=read.layers,
        norm=family.norm,
        norm_eps=read.norm_eps,
        pre_norm=family.pre_norm,
        rope=rope,
        activation=read.activation,
        pooling=PoolingType.NONE,
        tower=tower,
    )


def _placed(read: ReadTower) -> TowerConfig:
    """Returns what towers have in common whose patches have a row and a column."""
    processor = read.processor
    return TowerConfig(
        patch_features=processor.patch_features,
        merged=processor.merge * processor.merge,
        embedding_size=read.embedding_size,
        places=processor.places,
    )


def _rope_by_axes(read: ReadTower, theta: float, shift: float = 0.0) -> RopeConfig:
    """Returns a rotation by the rows and columns of patches; see `RopeConfig.axes_shift`."""
    head_dim = read.layers[0].key_dim
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
