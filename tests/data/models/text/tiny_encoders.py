"""Tiny random encoders, in Hugging Face's layout and as GGUF files.

As `tiny_models`: a recipe is a class and a configuration of Transformers and a seed;
`make_encoder_goldens.py` records what Transformers and llama.cpp compute with those weights, the
tests write them as GGUF, the way llama.cpp's converter does, and compare.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import numpy.typing as npt

from rocmforge.gguf.reader import open_gguf
from tests.support.files.gguf_writer import Stored, Value, write_gguf

Tensors = dict[str, npt.NDArray[np.float32]]

PROMPT: Final = (4, *(7 * index % 89 + 5 for index in range(38)), 2)
GOLDEN_ROWS: Final = (0, 1, 17, 39)

VOCABULARY: Final = (
    *("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"),
    *(f"▁{chr(code)}" for code in range(ord("a"), ord("z") + 1)),
    *(chr(code) for code in range(ord("a"), ord("z") + 1)),
    *(f"▁{digit}" for digit in range(10)),
    *(str(digit) for digit in range(10)),
    *(f"▁{mark}" for mark in ".,:;!?-'()"),
    *("▁the", "▁cat", "▁dog", "▁sat", "▁on", "▁mat", "▁rain", "fall", "ing", "ed"),
)


@dataclass(frozen=True, kw_only=True)
class TinyEncoder:
    """A recipe. `config` are keyword arguments of the configuration class."""

    name: str
    architecture: str  # GGUF's
    hf_class: str  # of Transformers, or of code that comes with a model
    config: dict[str, Any]
    # What the converter writes besides the common keys, without "<architecture>.".
    keys: dict[str, Value] = field(default_factory=dict)
    ranks: bool = False  # it has a classification head
    seed: int = 0

    @property
    def position_offset(self) -> int:
        """Rows of the position table before that of position 0."""
        return 2 if self.hf_class == "XLMRoberta" else 0

    @property
    def is_jina(self) -> bool:
        """Whether Transformers does not have the class."""
        return self.hf_class.startswith("Jina")

    @property
    def is_gemma(self) -> bool:
        """Whether it is built as decoders are."""
        return self.hf_class == "Gemma3Text"

    @property
    def eps_key(self) -> str:
        """What its class calls the number that keeps norms from dividing by zero."""
        if self.is_gemma:
            return "rms_norm_eps"
        return "norm_eps" if self.hf_class == "ModernBert" else "layer_norm_eps"

    @property
    def network(self) -> str:
        """Transformers' class."""
        return f"{self.hf_class}{'ForSequenceClassification' if self.ranks else 'Model'}"


_COMMON: Final[dict[str, Any]] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LENGTHS: Final = (1, 63, 64, 65, 700)
"""Tokens of further prompts of EmbeddingGemma, whose last tile of keys is full, or has one key."""
LONG_PROMPT: Final = tuple(11 * index % 89 + 5 for index in range(max(LENGTHS)))

_ROBERTA: Final = {"max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 1}

ENCODERS: Final = (
    TinyEncoder(
        name="bert",
        architecture="bert",
        hf_class="Bert",
        config=_COMMON,
        keys={"pooling_type": 2},
        seed=21,
    ),
    TinyEncoder(
        name="xlm-roberta",
        architecture="bert",
        hf_class="XLMRoberta",
        config=_COMMON | _ROBERTA,
        keys={"pooling_type": 1},
        seed=22,
    ),
    TinyEncoder(
        name="nomic-bert",
        architecture="nomic-bert",
        hf_class="NomicBert",
        config=_COMMON | {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
        keys={"pooling_type": 1, "rope.freq_base": 1000.0},
        seed=23,
    ),
    TinyEncoder(
        name="modern-bert",
        architecture="modern-bert",
        hf_class="ModernBert",
        config=_COMMON
        | {
            "num_hidden_layers": 5,
            "local_attention": 18,
            "global_attn_every_n_layers": 3,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
        keys={
            "pooling_type": 2,
            "attention.sliding_window": 18,
            "attention.sliding_window_pattern": 3,
            "rope.freq_base": 1000.0,
            "rope.freq_base_swa": 100.0,
            "rope.scaling.type": "none",
            "hidden_activation": "gelu",
        },
        seed=25,
    ),
    TinyEncoder(
        name="jina-bert-v2",
        architecture="jina-bert-v2",
        hf_class="JinaBert",
        config=_COMMON | {"num_attention_heads": 6},
        keys={"pooling_type": 1},
        seed=26,
    ),
    TinyEncoder(
        name="jina-bert-v2-code",
        architecture="jina-bert-v2",
        hf_class="JinaBertCode",
        config=_COMMON,
        keys={"pooling_type": 1},
        seed=27,
    ),
    TinyEncoder(
        name="gemma-embedding",
        architecture="gemma-embedding",
        hf_class="Gemma3Text",
        config={key: _COMMON[key] for key in _COMMON if key != "type_vocab_size"}
        | {
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "max_position_embeddings": 768,
            "use_bidirectional_attention": True,
            "sliding_window": 18,
            "sliding_window_pattern": 3,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
        keys={
            "pooling_type": 1,
            "attention.head_count_kv": 2,
            "attention.key_length": 16,
            "attention.value_length": 16,
            "attention.sliding_window": 18,
            "attention.sliding_window_pattern": 3,
            "rope.freq_base": 1000.0,
            "rope.freq_base_swa": 100.0,
            "dense_2_feat_in": 48,
            "dense_2_feat_out": 256,
            "dense_3_feat_in": 256,
            "dense_3_feat_out": 48,
        },
        seed=28,
    ),
    TinyEncoder(
        name="ranker",
        architecture="bert",
        hf_class="XLMRoberta",
        config=_COMMON | _ROBERTA | {"num_labels": 1},
        ranks=True,
        seed=24,
    ),
)


def hf_weights(model: TinyEncoder) -> Tensors:
    """Random weights by Hugging Face's names, the same for the same seed."""
    rng = np.random.default_rng(model.seed)
    weights: Tensors = {}
    for name, shape in _hf_shapes(model).items():
        noise = rng.standard_normal(shape, dtype=np.float32)
        if "norm" in name.lower() and name.endswith("weight"):
            weights[name] = 0.2 * noise if model.is_gemma else 1 + 0.2 * noise
        elif name.endswith("bias") or "embeddings" in name:
            weights[name] = 0.5 * noise
        else:
            weights[name] = 1.5 * noise / np.float32(math.sqrt(shape[1]))
        weights[name] = weights[name].astype(np.float32)
    return weights


def _hf_shapes(model: TinyEncoder) -> dict[str, tuple[int, ...]]:
    if model.is_gemma:
        return _gemma_shapes(model.config)
    if model.hf_class == "ModernBert":
        return _modern_shapes(model.config)
    config = model.config
    dim, ffn = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], dim),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], dim),
        "embeddings.LayerNorm.weight": (dim,),
        "embeddings.LayerNorm.bias": (dim,),
    }
    if model.hf_class in ("Bert", "XLMRoberta"):
        positions = config["max_position_embeddings"]
        shapes["embeddings.position_embeddings.weight"] = (positions, dim)
    layer, folder = _bert_layer(dim, ffn), "encoder.layer"
    if model.hf_class == "NomicBert":
        layer, folder = _nomic_layer(dim, ffn), "layers"
    elif model.is_jina:
        layer = _jina_layer(dim, ffn, is_code=model.hf_class == "JinaBertCode")
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"{folder}.{index}.{name}": shape for name, shape in layer.items()}
    if not model.ranks:
        return shapes
    head: dict[str, tuple[int, ...]] = {
        "classifier.dense.weight": (dim, dim),
        "classifier.dense.bias": (dim,),
        "classifier.out_proj.weight": (config["num_labels"], dim),
        "classifier.out_proj.bias": (config["num_labels"],),
    }
    return {f"roberta.{name}": shape for name, shape in shapes.items()} | head


def _bert_layer(dim: int, ffn: int) -> dict[str, tuple[int, ...]]:
    matrices = _bert_attention(dim) | {
        "intermediate.dense": (ffn, dim),
        "output.dense": (dim, ffn),
    }
    return _with_biases(matrices, ("attention.output.LayerNorm", "output.LayerNorm"), dim)


def _jina_layer(dim: int, ffn: int, *, is_code: bool) -> dict[str, tuple[int, ...]]:
    up, down = ("up_gated_layer", "down_layer") if is_code else ("gated_layers", "wo")
    norms = ["attention.output.LayerNorm"]
    if is_code:
        norms += ["attention.self.layer_norm_q", "attention.self.layer_norm_k"]
        norms += ["layer_norm_1", "layer_norm_2"]
    else:
        norms.append("mlp.layernorm")
    matrices = _bert_attention(dim) | {f"mlp.{down}": (dim, ffn)}
    return _with_biases(matrices, norms, dim) | {f"mlp.{up}.weight": (2 * ffn, dim)}


def _bert_attention(dim: int) -> dict[str, tuple[int, ...]]:
    names = ("self.query", "self.key", "self.value", "output.dense")
    return {f"attention.{name}": (dim, dim) for name in names}


def _with_biases(
    matrices: dict[str, tuple[int, ...]], norms: Sequence[str], dim: int
) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in (matrices | dict.fromkeys(norms, (dim,))).items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


def _modern_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    dim, ffn = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.tok_embeddings.weight": (config["vocab_size"], dim),
        "embeddings.norm.weight": (dim,),
        "final_norm.weight": (dim,),
    }
    for index in range(config["num_hidden_layers"]):
        layer: dict[str, tuple[int, ...]] = {
            "attn_norm": (dim,),
            "attn.Wqkv": (3 * dim, dim),
            "attn.Wo": (dim, dim),
            "mlp_norm": (dim,),
            "mlp.Wi": (2 * ffn, dim),
            "mlp.Wo": (dim, ffn),
        }
        if index == 0:
            del layer["attn_norm"]
        shapes |= {f"layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def _gemma_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Those of Gemma 3; behind a slash those of modules of Sentence-Transformers."""
    dim, ffn, head_dim = (config[key] for key in ("hidden_size", "intermediate_size", "head_dim"))
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (heads * head_dim, dim),
        "self_attn.k_proj": (kv_heads * head_dim, dim),
        "self_attn.v_proj": (kv_heads * head_dim, dim),
        "self_attn.o_proj": (dim, heads * head_dim),
        "self_attn.q_norm": (head_dim,),
        "self_attn.k_norm": (head_dim,),
        "mlp.gate_proj": (ffn, dim),
        "mlp.up_proj": (ffn, dim),
        "mlp.down_proj": (dim, ffn),
    }
    for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
        layer[f"{norm}_layernorm"] = (dim,)
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (config["vocab_size"], dim),
        "norm.weight": (dim,),
        "2_Dense/linear.weight": (256, dim),
        "3_Dense/linear.weight": (dim, 256),
    }
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def _nomic_layer(dim: int, ffn: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        f"self_attn.{name}_proj.weight": (dim, dim) for name in ("q", "k", "v", "o")
    }
    shapes |= {f"mlp.{name}_proj.weight": (ffn, dim) for name in ("gate", "up")}
    shapes["mlp.down_proj.weight"] = (dim, ffn)
    for name in ("post_attention_layernorm", "post_mlp_layernorm"):
        shapes |= {f"{name}.weight": (dim,), f"{name}.bias": (dim,)}
    return shapes


# Transformers' own names of NomicBERT; the converter knows those of the original code.
_NOMIC_NAMES: Final = {
    "self_attn.qkv": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "attn_output_norm",
    "post_mlp_layernorm": "layer_output_norm",
}


def gguf_tensors(model: TinyEncoder) -> Tensors:
    """The weights by GGUF's names (from the `gguf` package's own map) and in its layout."""
    names = gguf.get_tensor_name_map(
        next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == model.architecture),
        model.config["num_hidden_layers"],
    )
    tensors: Tensors = {}
    weights = hf_weights(model)
    for name, weight in (_fused(weights) if model.hf_class == "NomicBert" else weights).items():
        bare = name.removeprefix("roberta.")
        if model.is_gemma:
            bare = f"model.{name}" if "/" not in name else f"dense_{name[0]}.weight"
            weight = weight + 1 if "norm" in name else weight  # as the converter does
        if model.hf_class == "NomicBert" and bare.startswith("layers."):
            _, index, rest = bare.split(".", 2)
            part, kind = rest.rsplit(".", 1)
            found = f"blk.{index}.{_NOMIC_NAMES[part]}.{kind}"
        else:
            mapped = names.get_name(bare, try_suffixes=(".weight", ".bias"))
            assert mapped is not None, name
            found = mapped
        if "position_embeddings" in bare:
            weight = weight[model.position_offset :]
        tensors[found] = np.ascontiguousarray(weight, np.float32)
    return tensors


def _fused(weights: Tensors) -> Tensors:
    """The same with query, key and value matrices of NomicBERT in one, as the files have them."""
    fused: Tensors = {}
    for name, weight in weights.items():
        if "self_attn.q_proj" in name:
            parts = [weights[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            fused[name.replace("q_proj", "qkv")] = np.concatenate(parts)
        elif "self_attn.k_proj" not in name and "self_attn.v_proj" not in name:
            fused[name] = weight
    return fused


def gguf_metadata(model: TinyEncoder) -> dict[str, Value]:
    """What the converter writes for this model, with a WordPiece vocabulary."""
    config = model.config
    keys: dict[str, Value] = {
        "context_length": config["max_position_embeddings"] - model.position_offset,
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "block_count": config["num_hidden_layers"],
        "attention.head_count": config["num_attention_heads"],
        f"attention.layer_norm{'_rms' if model.is_gemma else ''}_epsilon": 1e-12,
        "attention.causal": False,
        **model.keys,
    }
    types = [3] * 5 + [1] * (len(VOCABULARY) - 5)
    return {
        "general.architecture": model.architecture,
        "general.name": model.name,
        **{f"{model.architecture}.{key}": value for key, value in keys.items()},
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": list(VOCABULARY),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.token_type_count": config.get("type_vocab_size", 1),
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.cls_token_id": 1,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.seperator_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.mask_token_id": 4,
    }


def write_encoder(
    model: TinyEncoder,
    folder: Path,
    store: Callable[[str, npt.NDArray[np.float32]], npt.NDArray[np.float32] | Stored] = (
        lambda name, weight: weight
    ),
) -> Path:
    """Writes the model as a GGUF file, each tensor as `store` makes it, and returns its path."""
    tensors = {name: store(name, weight) for name, weight in gguf_tensors(model).items()}
    return write_gguf(folder / f"{model.name}.gguf", gguf_metadata(model), tensors)


def write_with_byte_level_bpe(model: TinyEncoder, pre: str, gpt2: Path, folder: Path) -> Path:
    """Writes the model for text: with GPT-2's vocabulary, and the tokens that encoders put around.

    Args:
        model: The recipe; its vocabulary is replaced.
        pre: The file's name for its pre-tokenizer.
        gpt2: A file with GPT-2's vocabulary, from llama.cpp's tests.
        folder: Where to write.
    """
    with open_gguf(gpt2) as file:
        taken = {key: file.metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "merges")}
        types = np.array(file.metadata["tokenizer.ggml.token_type"], np.int32)
    size = {"vocab_size": len(types), "max_position_embeddings": 128}
    grown = replace(model, config=model.config | size)
    tokenizer: dict[str, Value] = {
        "model": "gpt2",
        "pre": pre,
        **taken,
        "token_type": types,
        "token_type_count": 2,
        "add_bos_token": True,
        "add_eos_token": True,
        "bos_token_id": len(types) - 1,
        "eos_token_id": len(types) - 1,
    }
    metadata = {
        key: value for key, value in gguf_metadata(grown).items() if "tokenizer." not in key
    } | {f"tokenizer.ggml.{key}": value for key, value in tokenizer.items()}
    return write_gguf(folder / f"{model.name}.gguf", metadata, gguf_tensors(grown))


def goldens(name: str) -> dict[str, Any]:
    """What Transformers computed for the model of that name; see make_encoder_goldens.py."""
    path = Path(__file__).parents[1] / "goldens/encoder_goldens.json"
    found: dict[str, Any] = json.loads(path.read_text())[name]
    return found


def by_name(name: str) -> TinyEncoder:
    """The recipe of that name."""
    return next(model for model in ENCODERS if model.name == name)
