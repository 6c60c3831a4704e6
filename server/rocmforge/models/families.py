"""The families of models that we serve: a row for each.

A row states which weights its models have, and the facts that their files leave out. A reader of
files adds the names that its files give to the tensors of a family, as `gguf.names`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from rocmforge.models.config import ActivationFunction, NormKind
from rocmforge.models.layer_config import RouterFunction
from rocmforge.models.rope_config import PositionAxes, RopeStyle


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """One row. The weights are those beside what every model has, by `WeightPlace.name`.

    The facts of encoders are those of the converter and the graphs of llama.cpp
    (`conversion/bert.py`, `src/models/bert.cpp`).
    """

    has: frozenset[str]
    may_have: frozenset[str] = frozenset()
    not_in_first_layer: frozenset[str] = frozenset()
    causal: bool = True  # False: an encoder
    norm: NormKind = NormKind.RMS
    pre_norm: bool = True
    joint_head_norms: bool = False  # norms of queries and keys, if any, are of all heads together
    rotates_first: bool = False  # rope comes before those norms
    activation: ActivationFunction = ActivationFunction.SILU  # where the file names no other
    scales_embedding: bool = False  # by sqrt(hidden_size)
    # Layers may have experts, whose router has this function where the file names no other.
    router: RouterFunction | None = None
    normalises_experts: bool = True  # their weights, where the file does not say
    has_alibi: bool = False
    has_rope: bool = True
    rope_style: RopeStyle = RopeStyle.NEOX  # as published; a converter may change it
    rounds_yarn: bool = True  # as `RopeScaling.rounds_bounds`
    # One of so many layers has no window: the last, or the first. 1: each layer has the window.
    # None: no layer has one, unless a file says for each layer.
    window_period: int | None = None
    first_sees_all: bool = False
    window_default: int | None = None  # where the file states none
    local_theta_default: float | None = None  # of layers with a window, if they have their own
    unscaled_windows: bool = False  # layers with a window rotate as the others, but unscaled
    # One of so many layers, the last, does not rotate.
    unrotated_period: int | None = None
    rotates_in_windows: bool = False  # only layers with a window do, where a file does not say
    # Layer count of the one size whose scores are scaled by hidden_size / heads, not by head_dim.
    layers_scaled_by_dim: int | None = None
    is_scaled: bool = False  # files scale embeddings, what is added to them, scores and logits
    has_one_part: bool = False  # each layer: attention, or states, or a network
    has_temperature: bool = False  # as `RopeScaling.temperature`
    norms_values: bool = False  # as `LayerConfig.norms_values`
    unscaled_scores: bool = False
    post_norm_eps: float | None = None  # as `ModelConfig.post_norm_eps`
    multiplies_logits: bool = False  # by what files say; others that do divide by it
    # Heads differ between layers with a window and others; files may leave the values of the others
    # out, which are their keys then.
    has_uneven_heads: bool = False
    has_dense_beside_experts: bool = False
    tiled_values: bool = False  # as `DeltaConfig.is_tiled`, in GGUF files
    # Rows of an image see those behind them in layers with a window alone.
    sees_ahead_in_windows: bool = False
    axes: PositionAxes | None = None  # of positions in images; None: they are as those of text

    @property
    def may_predict(self) -> bool:
        """Whether a file may have a predictor of further tokens."""
        return "predictor.projection" in self.has

    @property
    def is_tower(self) -> bool:
        """Whether it reads images, for a model beside it."""
        return "patches.matrix" in self.has

    @property
    def may_have_latent_experts(self) -> bool:
        """Whether its experts may read and make other features than the model has."""
        return "experts.latent_down" in self.has

    @property
    def is_latent(self) -> bool:
        """Whether its layers have multi-head latent attention."""
        return "latent.kv_a" in self.has

    @property
    def has_states(self) -> bool:
        """Whether some of its layers remember states and have no attention."""
        return "convolution.filter" in self.has or self.has_delta or self.has_mamba

    @property
    def has_delta(self) -> bool:
        """Whether these are layers of Gated DeltaNet."""
        return "delta.filter" in self.has

    @property
    def has_mamba(self) -> bool:
        """Whether these are layers of Mamba-2."""
        return "mamba.filter" in self.has


_ATTENTION: Final = frozenset(f"attention.{part}" for part in ("q", "k", "v", "output"))
_LATENT: Final = frozenset(
    f"latent.{part}"
    for part in ("q", "q_a", "q_norm", "q_b", "kv_a", "kv_norm", "k_b", "v_b", "output")
)
_NORMS: Final = frozenset({"attention_norm", "feed_forward_norm", "output_norm"})
_GATES: Final = frozenset({"feed_forward.gate", "experts.gate", "experts.shared.gate"})
_OF_DECODERS: Final = _NORMS | _GATES
_DECODER: Final = _OF_DECODERS | _ATTENTION
_CONVOLUTION: Final = frozenset(f"convolution.{part}" for part in ("input", "filter", "output"))
_DELTA: Final = frozenset(
    f"delta.{part}"
    for part in (
        *("mixed", "gate", "alpha", "beta", "decay", "time_offset", "filter", "norm", "output"),
    )
)
_MAMBA: Final = frozenset(
    f"mamba.{part}"
    for part in ("input", "filter", "decay", "time_offset", "skip", "norm", "output")
)
_HEAD_NORMS: Final = frozenset({"attention.q_norm", "attention.k_norm"})
_POST_NORMS: Final = frozenset({"attention_post_norm", "feed_forward_post_norm"})
_OUTPUT: Final = frozenset({"output"})
_BIASES: Final = frozenset(f"attention.{part}_bias" for part in ("q", "k", "v", "output"))
_SELECTION: Final = frozenset({"experts.selection_bias"})
_OF_LATENT_EXPERTS: Final = frozenset({"experts.latent_down", "experts.latent_up"})
_PREDICTOR: Final = frozenset(
    {"predictor.embedding_norm", "predictor.hidden_norm", "predictor.projection"}
)
_OF_PREDICTOR: Final = frozenset(
    {"predictor.embedding", "predictor.output_norm", "predictor.output"}
)

_ENCODER: Final = _ATTENTION | frozenset(
    {
        *("embedding.norm", "embedding.norm_bias"),
        *("attention_norm", "attention_norm_bias"),
        *("feed_forward_norm", "feed_forward_norm_bias"),
    }
)
_OF_TOWERS: Final = (
    _ATTENTION
    | _BIASES
    | {"patches.matrix", "patches.bias", "projector.matrix"}
    | {"attention_norm", "attention_norm_bias", "feed_forward_norm", "feed_forward_norm_bias"}
    | {"feed_forward.up_bias", "feed_forward.down_bias", "output_norm", "output_norm_bias"}
)
_OF_INTERNVL: Final = (
    (_OF_TOWERS - _BIASES - {"output_norm", "output_norm_bias"})
    | {"attention.output_bias", "attention_scale", "feed_forward_scale"}
    | {"embedding.class_token", "projector.row_norm", "projector.row_norm_bias"}
    | {"projector.inner", "projector.inner_bias", "projector.matrix_bias"}
)
_OF_PIXTRAL: Final = (
    _ATTENTION
    | {"attention_norm", "feed_forward_norm", "feed_forward.gate", "embedding.norm"}
    | {"patches.matrix", "projector.inner", "projector.matrix"}
)
_TYPES: Final = frozenset({"embedding.type"})
_HEAD: Final = frozenset({"head.dense", "head.dense_bias", "head.scores", "head.scores_bias"})

FAMILIES: Final[Mapping[str, ModelFamily]] = MappingProxyType(
    {
        "llama": ModelFamily(
            has=_DECODER, may_have=_BIASES | _OUTPUT, router=RouterFunction.SOFTMAX
        ),
        "mistral3": ModelFamily(has=_DECODER, may_have=_BIASES | _OUTPUT, has_temperature=True),
        "granite": ModelFamily(has=_DECODER, may_have=_BIASES | _OUTPUT, is_scaled=True),
        "smollm3": ModelFamily(has=_DECODER, may_have=_BIASES | _OUTPUT, unrotated_period=4),
        # OLMo 2 (arXiv:2501.00656), and OLMo 3, which has windows.
        "olmo2": ModelFamily(
            has=_ATTENTION | _HEAD_NORMS | _POST_NORMS | {"feed_forward.gate", "output_norm"},
            may_have=_BIASES | _OUTPUT,
            joint_head_norms=True,
            window_period=4,
            unscaled_windows=True,
        ),
        "qwen2": ModelFamily(has=_DECODER, may_have=_BIASES | _OUTPUT),
        "qwen2vl": ModelFamily(
            has=_DECODER, may_have=_BIASES | _OUTPUT, axes=PositionAxes.SECTIONS
        ),
        # Qwen3-VL differs from Qwen 3 by its positions in images, also with experts.
        **{
            name: ModelFamily(
                has=_DECODER | _HEAD_NORMS,
                may_have=_BIASES | _OUTPUT,
                router=RouterFunction.SOFTMAX if name.endswith("moe") else None,
                axes=PositionAxes.INTERLEAVED if name.startswith("qwen3vl") else None,
            )
            for name in ("qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe")
        },
        "qwen2moe": ModelFamily(
            has=_DECODER | {"experts.shared.router"},
            may_have=_BIASES | _OUTPUT,
            router=RouterFunction.SOFTMAX,
            normalises_experts=False,
        ),
        "olmoe": ModelFamily(
            has=_DECODER | _HEAD_NORMS,
            may_have=_BIASES | _OUTPUT,
            joint_head_norms=True,
            router=RouterFunction.SOFTMAX,
            normalises_experts=False,
        ),
        "ernie4_5-moe": ModelFamily(
            has=_DECODER,
            may_have=_BIASES | _OUTPUT | _SELECTION,
            rope_style=RopeStyle.NORMAL,
            router=RouterFunction.SOFTMAX,
        ),
        "dots1": ModelFamily(
            has=_DECODER | _HEAD_NORMS,
            may_have=_BIASES | _OUTPUT | _SELECTION,
            router=RouterFunction.SIGMOID,
        ),
        "glm4moe": ModelFamily(
            has=_DECODER | _PREDICTOR,
            may_have=_HEAD_NORMS | _BIASES | _OUTPUT | _SELECTION | _OF_PREDICTOR,
            router=RouterFunction.SIGMOID,
        ),
        "minimax-m2": ModelFamily(
            has=_DECODER | _HEAD_NORMS | _SELECTION,
            may_have=_OUTPUT,
            joint_head_norms=True,
            router=RouterFunction.SIGMOID,
        ),
        # Also what other makers have named after themselves, as GLM-4.7-Flash.
        "deepseek2": ModelFamily(
            has=_OF_DECODERS | _LATENT | _PREDICTOR,
            may_have=_OUTPUT | _SELECTION | _OF_PREDICTOR,
            rope_style=RopeStyle.NORMAL,
            router=RouterFunction.SOFTMAX,
            normalises_experts=False,
        ),
        "bailingmoe2": ModelFamily(
            has=_DECODER | _HEAD_NORMS,
            may_have=_OUTPUT | _SELECTION,
            router=RouterFunction.SIGMOID,
        ),
        "hunyuan-moe": ModelFamily(
            has=_DECODER | _HEAD_NORMS,
            may_have=_OUTPUT,
            rotates_first=True,
            router=RouterFunction.SOFTMAX,
        ),
        # Its YaRN rounds nothing, as published; GGUF files do not say so, and llama.cpp rounds.
        "gpt-oss": ModelFamily(
            has=_DECODER
            | _BIASES
            | {"attention.sinks", "experts.router_bias"}
            | {"experts.gate_bias", "experts.up_bias", "experts.down_bias"},
            may_have=_OUTPUT,
            activation=ActivationFunction.CLAMPED_SWIGLU,
            rounds_yarn=False,
            window_period=2,
            window_default=128,
            router=RouterFunction.SOFTMAX_OF_CHOSEN,
            normalises_experts=False,
        ),
        # Liquid AI 2025, arXiv:2511.23404.
        **{
            name: ModelFamily(
                has=_DECODER | _HEAD_NORMS | _CONVOLUTION,
                may_have=_OUTPUT | _SELECTION,
                window_period=1,
                router=router,
            )
            for name, router in (("lfm2", None), ("lfm2moe", RouterFunction.SIGMOID))
        },
        # Positions of text are the same on all axes of theirs.
        **{
            name: ModelFamily(
                has=_DECODER | _HEAD_NORMS | _DELTA | {"attention.gate"} | shared | _PREDICTOR,
                may_have=_OUTPUT | _OF_PREDICTOR,
                tiled_values=name != "qwen3next",
                axes=None if name == "qwen3next" else PositionAxes.INTERLEAVED,
                router=RouterFunction.SOFTMAX if shared else None,
            )
            for name, shared in (
                ("qwen35", frozenset[str]()),
                ("qwen35moe", frozenset({"experts.shared.router"})),
                ("qwen3next", frozenset({"experts.shared.router"})),
            )
        },
        # Of Granite 4.
        "granitehybrid": ModelFamily(
            has=_DECODER | _MAMBA,
            may_have=_OUTPUT | {"mamba.filter_bias"},
            is_scaled=True,
            router=RouterFunction.SOFTMAX,
        ),
        # NVIDIA 2025, arXiv:2504.03624.
        **{
            name: ModelFamily(
                has=_OF_LATENT_EXPERTS | {"attention_norm", "output_norm"} | _ATTENTION | _MAMBA,
                may_have=_OUTPUT | _SELECTION | {"mamba.filter_bias"},
                activation=ActivationFunction.SQUARED_RELU,
                has_rope=False,
                has_one_part=True,
                router=router,
            )
            for name, router in (("nemotron_h", None), ("nemotron_h_moe", RouterFunction.SIGMOID))
        },
        "gemma2": ModelFamily(
            has=_DECODER | _POST_NORMS,
            activation=ActivationFunction.GELU_TANH,
            scales_embedding=True,
            window_period=2,
            window_default=4096,
            layers_scaled_by_dim=46,
        ),
        "gemma3": ModelFamily(
            has=_DECODER | _POST_NORMS | _HEAD_NORMS,
            may_have=_OUTPUT,
            activation=ActivationFunction.GELU_TANH,
            scales_embedding=True,
            window_period=6,
            local_theta_default=10000.0,
            layers_scaled_by_dim=62,
        ),
        "gemma4": ModelFamily(
            has=_DECODER
            | _POST_NORMS
            | _HEAD_NORMS
            | {"experts.norm", "experts.post_norm", "experts.dense_post_norm"}
            | {"experts.router_norm", "experts.weight_scale"}
            | {"embedding.per_layer", "embedding.per_layer_projection", "embedding.per_layer_norm"}
            | {"per_layer.gate", "per_layer.output", "per_layer.norm"},
            may_have=_OUTPUT | {"output_scale"},
            activation=ActivationFunction.GELU_TANH,
            scales_embedding=True,
            router=RouterFunction.SOFTMAX,
            window_period=6,
            window_default=512,
            local_theta_default=10000.0,
            norms_values=True,
            unscaled_scores=True,
            has_uneven_heads=True,
            has_dense_beside_experts=True,
            sees_ahead_in_windows=True,
        ),
        # Muse Glimmer, without its tower.
        "muse-glimmer": ModelFamily(
            has=_DECODER | _POST_NORMS | _HEAD_NORMS | {"attention.gate", "embedding.norm"},
            may_have=_OUTPUT,
            window_period=4,
            rotates_in_windows=True,
            post_norm_eps=1e-8,
            multiplies_logits=True,
        ),
        "phi3": ModelFamily(has=_DECODER, may_have=_OUTPUT, window_period=1),
        "glm4": ModelFamily(
            has=_DECODER | _POST_NORMS,
            may_have=_BIASES | _OUTPUT,
            rope_style=RopeStyle.NORMAL,
        ),
        # BERT, and RoBERTa and XLM-RoBERTa, whose position table starts where theirs is used.
        "bert": ModelFamily(
            has=_ENCODER | {"embedding.position"},
            may_have=_TYPES | _BIASES | _HEAD | {"feed_forward.up_bias", "feed_forward.down_bias"},
            causal=False,
            norm=NormKind.LAYER,
            pre_norm=False,
            activation=ActivationFunction.GELU,
            has_rope=False,
        ),
        "nomic-bert": ModelFamily(
            has=_ENCODER | {"feed_forward.gate"},
            may_have=_TYPES | _HEAD,
            causal=False,
            norm=NormKind.LAYER,
            pre_norm=False,
        ),
        # Warner et al. 2024, arXiv:2412.13663.
        "modern-bert": ModelFamily(
            has=_DECODER | {"embedding.norm"},
            not_in_first_layer=frozenset({"attention_norm"}),  # the embedding's norm is there
            causal=False,
            norm=NormKind.LAYER,
            activation=ActivationFunction.GELU,
            window_period=3,
            first_sees_all=True,
            local_theta_default=10000.0,
        ),
        # EmbeddingGemma (arXiv:2509.20354): Gemma 3 whose tokens see both sides.
        "gemma-embedding": ModelFamily(
            has=_DECODER | _POST_NORMS | _HEAD_NORMS,
            may_have=frozenset({"dense"}),
            causal=False,
            activation=ActivationFunction.GELU_TANH,
            scales_embedding=True,
            window_period=6,
            local_theta_default=10000.0,
        ),
        # The tower of Zhai et al. 2023, arXiv:2303.15343, and what each family puts behind it.
        "siglip": ModelFamily(
            has=_OF_TOWERS,
            may_have=frozenset({"projector.norm"}),
            causal=False,
            norm=NormKind.LAYER,
            activation=ActivationFunction.GELU_TANH,
            has_rope=False,
        ),
        # Of Gemma 4 12B, without layers; the norm of the projector has no weights in files.
        "gemma4-unified-tower": ModelFamily(
            has=frozenset(
                {"patches.matrix", "patches.bias", "projector.norm", "projector.matrix"}
                | {"patches.norm", "patches.norm_bias", "output_norm", "output_norm_bias"}
                | {"patches.output_norm", "patches.output_norm_bias"}
            ),
            causal=False,
            norm=NormKind.LAYER,
            has_rope=False,
        ),
        # Of its others; norms of values and that of the projector have no weights in files.
        "gemma4-tower": ModelFamily(
            has=_ATTENTION
            | _POST_NORMS
            | _HEAD_NORMS
            | {"attention.v_norm", "attention_norm", "feed_forward_norm", "feed_forward.gate"}
            | {"patches.matrix", "projector.norm", "projector.matrix"}
            | {f"attention.{part}_bounds" for part in ("q", "k", "v", "output")}
            | {f"feed_forward.{part}_bounds" for part in ("gate", "up", "down")},
            may_have=frozenset({"projector.shift", "projector.scale"}),
            causal=False,
            activation=ActivationFunction.GELU_TANH,
        ),
        # Bai et al. 2025, arXiv:2511.21631: of Qwen3-VL and Qwen 3.5.
        "qwen3vl-tower": ModelFamily(
            has=_OF_TOWERS
            | {"projector.inner", "projector.inner_bias", "projector.matrix_bias"}
            | {"merger.norm", "merger.norm_bias", "merger.inner", "merger.inner_bias"}
            | {"merger.matrix", "merger.matrix_bias"},
            causal=False,
            norm=NormKind.LAYER,
            activation=ActivationFunction.GELU_TANH,
        ),
        # Agrawal et al. 2024, arXiv:2410.07073; Mistral Small 3.1 and those after it merge patches.
        **{
            name: ModelFamily(
                has=_OF_PIXTRAL | merging,
                may_have=frozenset({"projector.inner_bias", "projector.matrix_bias"}),
                causal=False,
            )
            for name, merging in (
                ("pixtral", frozenset[str]()),
                ("pixtral-merging", frozenset({"output_norm", "projector.merger"})),
            )
        },
        # Chen et al. 2023, arXiv:2312.14238: the smaller one of InternVL's, then that of 6B.
        "internvl-tower": ModelFamily(
            has=_OF_INTERNVL,
            may_have=_BIASES - {"attention.output_bias"},
            causal=False,
            norm=NormKind.LAYER,
            activation=ActivationFunction.GELU,
            has_rope=False,
        ),
        "internvl-6b-tower": ModelFamily(
            has=(_OF_INTERNVL - {"attention_norm_bias", "feed_forward_norm_bias"}) | _HEAD_NORMS,
            may_have=_BIASES - {"attention.output_bias"},
            causal=False,
            joint_head_norms=True,
            activation=ActivationFunction.GELU,
            has_rope=False,
        ),
        # Wang et al. 2024, arXiv:2409.12191: patches have no embedding of their place.
        "qwen2vl-tower": ModelFamily(
            has=(_OF_TOWERS - {"patches.bias"})
            | {"projector.inner", "projector.inner_bias", "projector.matrix_bias"},
            causal=False,
            norm=NormKind.LAYER,
            activation=ActivationFunction.QUICK_GELU,
        ),
        # Bai et al. 2025, arXiv:2502.13923: as there, but with other norms and with gates.
        "qwen25vl-tower": ModelFamily(
            has=_NORMS
            | _ATTENTION
            | _BIASES
            | {"patches.matrix", "projector.matrix", "projector.matrix_bias"}
            | {"projector.inner", "projector.inner_bias", "feed_forward.gate"}
            | {"feed_forward.gate_bias", "feed_forward.up_bias", "feed_forward.down_bias"},
            causal=False,
        ),
        # Günther et al. 2023, arXiv:2310.19923.
        "jina-bert-v2": ModelFamily(
            has=_ENCODER | {"feed_forward.gate"},
            may_have=_TYPES
            | _BIASES
            | {"feed_forward.down_bias", "attention_norm_2", "attention_norm_2_bias"}
            | {"attention.q_norm", "attention.q_norm_bias"}
            | {"attention.k_norm", "attention.k_norm_bias"},
            causal=False,
            norm=NormKind.LAYER,
            pre_norm=False,
            joint_head_norms=True,
            activation=ActivationFunction.GELU,
            has_rope=False,
            has_alibi=True,
        ),
    }
)
"""By the name of the architecture, which is the one of GGUF files."""
