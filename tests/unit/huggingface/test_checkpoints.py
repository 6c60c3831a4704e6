"""Folders as checkpoints: which tensors are taken, which are refused, and what files beside say."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.errors import (
    BadAdapter,
    BadFolder,
    ModelFileNotFound,
    ModelLoadError,
    UnsupportedArchitecture,
)
from rocmforge.models.checkpoint import Checkpoint
from rocmforge.models.lora import AdapterSpec
from rocmforge.models.pooling import PoolingType
from rocmforge.models.sampling import SamplingDefaults
from rocmforge.opening import check_unchanged, identify, open_checkpoint
from tests.data.models.text import model_files, tiny_encoders
from tests.data.models.text.tiny_adapters import TinyAdapter
from tests.data.models.text.tiny_encoders import TinyEncoder
from tests.data.models.text.tiny_folders import write_adapter_folder, write_folder
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import by_name
from tests.support.files.safetensors_writer import write_safetensors
from tests.support.files.tokenizer_files import byte_level, write_tokenizer


def opened(folder: Path) -> Checkpoint:
    """The checkpoint of a folder; its maps go with its tensors."""
    with open_checkpoint(folder) as checkpoint:
        return checkpoint


def refusal(folder: Path) -> str:
    """Why a folder is refused."""
    with pytest.raises(ModelLoadError) as caught, open_checkpoint(folder):
        pass
    return str(caught.value)


def rewrite(
    folder: Path, model: TinyModel | TinyEncoder, **tensors: npt.NDArray[Any] | None
) -> None:
    """Writes the weights again with some others; None leaves one out."""
    recipe = tiny_encoders if isinstance(model, TinyEncoder) else model_files
    weights: dict[str, Any] = {**recipe.hf_weights(model), **tensors}
    kept = {name: weight for name, weight in weights.items() if weight is not None}
    write_safetensors(folder / "model.safetensors", kept)


def test_weights_stay_views_of_the_files_but_the_norms_that_lack_one(tmp_path: Path) -> None:
    with open_checkpoint(write_folder(by_name("gemma3"), tmp_path / "m", shards=2)) as checkpoint:
        copied = {
            path
            for path, tensor in checkpoint.weights.items()
            if checkpoint.locate(tensor.data) is None
        }
        assert copied == {path for path in checkpoint.weights if path.endswith("norm")}


def test_bytes_are_found_in_their_file(tmp_path: Path) -> None:
    folder = write_folder(by_name("phi3"), tmp_path / "m")
    with open_checkpoint(folder) as checkpoint:
        tensor = checkpoint.weights["layers.1.attention.v"]  # a part of qkv_proj
        found = checkpoint.locate(tensor.data)
        assert found is not None
        with found.path.open("rb") as file:
            file.seek(found.offset)
            assert file.read(tensor.nbytes) == tensor.data.tobytes()


def test_a_missing_tensor_is_named_as_in_the_folder(tmp_path: Path) -> None:
    model = by_name("llama")
    folder = write_folder(model, tmp_path / "m")
    rewrite(folder, model, **{"model.layers.1.self_attn.k_proj.weight": None})
    assert "'model.layers.1.self_attn.k_proj.weight': missing" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "tensor", "reason"),
    [
        ("llama", "model.layers.0.mlp.gate_proj.bias", "not a part of llama models"),
        ("llama", "model.layers.0.mlp.experts.0.down_proj.weight", "not a part of llama"),
        ("llama", "model.layers.9.self_attn.k_proj.weight", "not a part of"),
        ("qwen2", "model.layers.0.self_attn.q_norm.weight", "not a part of qwen2 models"),
        ("gemma3", "vision.weight", "not a part of gemma3 models"),
    ],
)
def test_a_tensor_that_such_models_do_not_have_is_refused(
    name: str, tensor: str, reason: str, tmp_path: Path
) -> None:
    folder = write_folder(by_name(name), tmp_path / "m")
    rewrite(folder, by_name(name), **{tensor: np.ones((16, 48), np.float32)})
    assert reason in refusal(folder)


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (np.ones((48, 48), np.int64), "it is of type I64 or has no elements; read are BF16, F16"),
        (np.ones((48, 40), np.float32), "its shape is (48, 40)"),
        (np.ones((0, 48), np.float32), "has no elements"),
        (np.ones((48, 48, 1), np.float32), "its shape is (48, 48, 1)"),
    ],
)
def test_a_tensor_of_another_type_or_shape_is_refused(
    weight: npt.NDArray[Any], reason: str, tmp_path: Path
) -> None:
    model = by_name("llama")
    folder = write_folder(model, tmp_path / "m")
    rewrite(folder, model, **{"model.layers.0.self_attn.o_proj.weight": weight})
    assert reason in refusal(folder)


def test_a_fused_tensor_with_too_few_rows_is_refused(tmp_path: Path) -> None:
    folder = write_folder(by_name("phi3"), tmp_path / "m")
    short = np.ones((79, 48), np.float32)
    rewrite(folder, by_name("phi3"), **{"model.layers.0.self_attn.qkv_proj.weight": short})
    assert "the configuration asks for (80, 48)" in refusal(folder)


BESIDE: dict[str, npt.NDArray[Any] | None] = {
    "embeddings.position_ids": np.arange(64),
    "pooler.dense.weight": np.ones((48, 48), np.float32),
    "cls.predictions.bias": np.ones(97, np.float32),
}


def test_what_is_no_part_of_the_model_is_left_out(tmp_path: Path) -> None:
    model = tiny_encoders.by_name("bert")
    folder = write_folder(model, tmp_path / "m")
    rewrite(
        folder,
        model,
        **BESIDE,
    )
    assert not [path for path in opened(folder).weights if path.startswith("head")]


def test_a_ranker_of_bert_has_its_pooler_as_first_matrix(tmp_path: Path) -> None:
    model = tiny_encoders.by_name("bert")
    config = {"architectures": ["BertForSequenceClassification"]}
    folder = write_folder(model, tmp_path / "m", config=config)
    weights = {f"bert.{name}": weight for name, weight in tiny_encoders.hf_weights(model).items()}
    weights |= {
        "bert.pooler.dense.weight": np.ones((48, 48), np.float32),
        "bert.pooler.dense.bias": np.ones(48, np.float32),
        "classifier.weight": np.ones((3, 48), np.float32),
        "classifier.bias": np.ones(3, np.float32),
    }
    write_safetensors(folder / "model.safetensors", weights)
    with open_checkpoint(folder) as checkpoint:
        assert (checkpoint.config.pooling, checkpoint.config.num_scores) == (PoolingType.RANK, 3)
        heads = {path for path in checkpoint.weights if path.startswith("head.")}
    assert heads == {f"head.{part}" for part in ("dense", "dense_bias", "scores", "scores_bias")}


def test_an_output_matrix_beside_a_tied_embedding_does_not_count(tmp_path: Path) -> None:
    model = by_name("qwen2")
    folder = write_folder(model, tmp_path / "m")
    rewrite(folder, model, **{"lm_head.weight": np.ones((97, 48), np.float32)})
    assert "output" not in opened(folder).weights


def test_a_missing_output_matrix_is_refused_unless_it_is_tied(tmp_path: Path) -> None:
    model = by_name("llama")
    folder = write_folder(model, tmp_path / "m")
    rewrite(folder, model, **{"lm_head.weight": None})
    assert "'lm_head.weight': missing; tie_word_embeddings is false" in refusal(folder)


def test_gemma_with_images_gives_its_text_part(tmp_path: Path) -> None:
    model = by_name("gemma3")
    folder = write_folder(model, tmp_path / "m")
    text = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    for prefix in ("language_model.model.", "model.language_model."):
        weights = {
            name.replace("model.", prefix, 1): weight
            for name, weight in model_files.hf_weights(model).items()
        }
        weights["model.vision_tower.x.weight"] = np.ones(4, np.float32)
        write_safetensors(folder / "model.safetensors", weights)
        with open_checkpoint(folder) as checkpoint:
            assert checkpoint.config.num_layers == 7


def test_quantised_weights_are_refused_with_the_way_out(tmp_path: Path) -> None:
    config = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    folder = write_folder(by_name("llama"), tmp_path / "m", config=config)
    assert "its weights are quantised (gptq), which is not read" in refusal(folder)


@pytest.mark.parametrize("kind", ["mamba", "jamba", "../llama"])
def test_a_family_that_we_do_not_have_is_refused_with_those_we_have(
    kind: str, tmp_path: Path
) -> None:
    folder = write_folder(by_name("llama"), tmp_path / "m", config={"model_type": kind})
    with pytest.raises(UnsupportedArchitecture, match=r"Supported: llama, .*modernbert"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (None, "'score.weight': missing, although the model's class has it"),
        ((3, 48), "llama that tells 3 classes apart"),
        ((1, 40), "its shape is (1, 40)"),
        ((48,), "its shape is (48,)"),
    ],
)
def test_a_decoder_that_classifies_is_refused_unless_it_has_one_score(
    shape: tuple[int, ...] | None, reason: str, tmp_path: Path
) -> None:
    config = {"architectures": ["LlamaForSequenceClassification"]}
    folder = write_folder(by_name("llama"), tmp_path / "m", config=config)
    score = None if shape is None else np.ones(shape, np.float32)
    rewrite(folder, by_name("llama"), **{"lm_head.weight": None, "score.weight": score})
    assert reason in refusal(folder)


@pytest.mark.parametrize(
    ("name", "words", "reason"),
    [
        ("llama", {}, "'true_token_id': it is missing"),
        ("llama", {"true_token_id": 97}, "'true_token_id': 97 is no token"),
        ("llama", {"true_token_id": 1, "false_token_id": -1}, "'false_token_id': -1 is no token"),
        ("llama", None, "names 1_LogitScore/config.json, which is missing"),
        ("gemma2", {"true_token_id": 1}, "gemma2 that ranks by capped logits"),
    ],
)
def test_words_by_which_a_decoder_cannot_rank_are_refused(
    name: str, words: dict[str, Any] | None, reason: str, tmp_path: Path
) -> None:
    folder = write_folder(by_name(name), tmp_path / "m")
    write_modules(folder, ["Transformer", "LogitScore"], words)
    assert reason in refusal(folder)


def test_a_ranker_has_the_instruction_that_sentence_transformers_give_it(tmp_path: Path) -> None:
    folder = write_folder(by_name("llama"), tmp_path / "m")
    write_modules(folder, ["Transformer", "LogitScore"], {"true_token_id": 1})
    assert opened(folder).rank_instruction is None
    prompts = {"prompts": {"web": "Find it."}, "default_prompt_name": "web"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    assert opened(folder).rank_instruction == "Find it."
    prompts["default_prompt_name"] = "legal"
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    assert "'prompts.legal': it is missing" in refusal(folder)


def test_an_adapter_is_no_model_and_says_how_it_is_served(tmp_path: Path) -> None:
    folder = write_adapter_folder(tmp_path / "a", by_name("llama"), TinyAdapter())
    with pytest.raises(BadAdapter, match="Serve its base model with --lora NAME="):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("modules", "config", "pooling"),
    [
        (None, {}, PoolingType.MEAN),
        (["Transformer", "Pooling"], {"pooling_mode_cls_token": True}, PoolingType.CLS),
        (
            ["Transformer", "Pooling", "Normalize"],
            {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True},
            PoolingType.MEAN,
        ),
        (["Transformer", "Pooling"], {"pooling_mode": "lasttoken"}, PoolingType.LAST),
    ],
)
def test_pooling_is_what_sentence_transformers_say(
    modules: list[str] | None, config: dict[str, Any], pooling: PoolingType, tmp_path: Path
) -> None:
    folder = write_folder(tiny_encoders.by_name("bert"), tmp_path / "m")
    if modules is not None:
        write_modules(folder, modules, config)
    assert opened(folder).config.pooling is pooling


def write_modules(folder: Path, modules: list[str], second: dict[str, Any] | None) -> None:
    """Writes what Sentence-Transformers writes beside a model, with what the second module says."""
    entries = [
        {
            "idx": index,
            "path": "" if name == "Transformer" else f"{index}_{name}",
            "type": f"sentence_transformers.models.{name}",
        }
        for index, name in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    if second is not None:
        (folder / f"1_{modules[1]}").mkdir()
        (folder / f"1_{modules[1]}/config.json").write_text(json.dumps(second))


@pytest.mark.parametrize(
    ("modules", "config", "reason"),
    [
        (["Transformer", "Pooling"], {"pooling_mode_max_tokens": True}, "may be cls, mean, or"),
        (["Transformer", "Pooling"], {}, "may be cls, mean, or"),
        (["Transformer", "Pooling", "Dense"], {"pooling_mode": "cls"}, "a module 'Dense'"),
    ],
)
def test_what_we_cannot_do_after_the_model_is_refused(
    modules: list[str], config: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = write_folder(tiny_encoders.by_name("bert"), tmp_path / "m")
    write_modules(folder, modules, config)
    assert reason in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"activation_function": "torch.nn.modules.activation.Tanh"}, "Tanh' is not supported"),
        ({"bias": True}, "a bias behind the pooling"),
    ],
)
def test_matrices_behind_the_pooling_must_be_nothing_else(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = write_folder(tiny_encoders.by_name("gemma-embedding"), tmp_path / "m")
    path = folder / "2_Dense" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert reason in refusal(folder)


def test_a_matrix_behind_the_pooling_that_is_missing_or_unknown_is_refused(
    tmp_path: Path,
) -> None:
    folder = write_folder(tiny_encoders.by_name("gemma-embedding"), tmp_path / "m")
    file = folder / "3_Dense" / "model.safetensors"
    write_safetensors(file, {"other.weight": np.zeros((4, 4), np.float32)})
    assert "3_Dense: other.weight" in refusal(folder)
    write_safetensors(file, {"linear.weight": np.zeros((4, 4), np.float32)})
    assert "3_Dense: linear.weight" in refusal(folder)
    file.unlink()
    with pytest.raises(ModelFileNotFound, match="3_Dense"), open_checkpoint(folder):
        pass


def test_a_module_in_another_folder_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tiny_encoders.by_name("bert"), tmp_path / "m")
    pooling = [{"type": "sentence_transformers.models.Pooling", "path": "../secret"}]
    (folder / "modules.json").write_text(json.dumps(pooling))
    assert "which is not a path within the folder" in refusal(folder)


def test_recommended_sampling_is_read(tmp_path: Path) -> None:
    folder = write_folder(by_name("llama"), tmp_path / "m")
    values = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "max_length": 9}
    (folder / "generation_config.json").write_text(json.dumps(values))
    assert opened(folder).sampling == SamplingDefaults(temperature=0.7, top_k=20, top_p=0.8)


def test_a_generation_config_that_says_nothing_of_sampling_recommends_nothing(
    tmp_path: Path,
) -> None:
    folder = write_folder(by_name("llama"), tmp_path / "m")
    (folder / "generation_config.json").write_text('{"do_sample": true}')
    assert opened(folder).sampling is None


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"temperature": -1}, "'temperature': -1 is not between 0 and 2"),
        ({"temperature": "hot"}, "'temperature': it is of type str"),
        ({"top_k": 2**40}, "'top_k': 1.09951e+12 is not between"),
        ({"repetition_penalty": 0}, "'repetition_penalty': 0 is not between"),
    ],
)
def test_sampling_that_makes_no_sense_is_refused_with_its_key(
    values: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = write_folder(by_name("llama"), tmp_path / "m")
    (folder / "generation_config.json").write_text(json.dumps(values))
    assert reason in refusal(folder)


def test_other_weights_are_the_same_model_and_another_tokenizer_is_not(tmp_path: Path) -> None:
    folder = write_folder(by_name("llama"), tmp_path / "m")
    write_tokenizer(folder, byte_level())
    before = identify(folder)
    check_unchanged(folder, before)
    rewrite(folder, by_name("llama"))
    os.utime(folder / "model.safetensors", ns=(1, before.modified_ns + 1))
    assert identify(folder) != before
    check_unchanged(folder, before)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates/tool_use.jinja").write_text("{{ t }}")
    assert identify(folder).digest != before.digest
    (folder / "tokenizer_config.json").write_text('{"add_bos_token": false}')
    with pytest.raises(ModelLoadError, match="another tokenizer or architecture"):
        check_unchanged(folder, before)


def test_a_folder_that_is_gone_is_not_there(tmp_path: Path) -> None:
    folder = write_folder(by_name("llama"), tmp_path / "m")
    before = identify(folder)
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(ModelFileNotFound):
        check_unchanged(folder, before)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"peft_type": "LOHA"}, "its peft_type is 'LOHA'"),
        ({"bias": "all"}, "it changes biases"),
        ({"use_dora": True}, "it uses use_dora"),
        ({"modules_to_save": ["lm_head"]}, "it uses modules_to_save"),
        ({"alpha_pattern": {"q_proj": 3}}, "it uses alpha_pattern"),
        ({"lora_alpha": "big"}, "'lora_alpha': it is of type str"),
    ],
)
def test_adapters_that_do_more_than_we_can_are_refused(
    config: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    assert reason in adapter_refusal(tmp_path, config)


def adapter_refusal(
    path: Path, config: dict[str, Any], tensors: dict[str, npt.NDArray[Any]] | None = None
) -> str:
    """Why an adapter of a tiny Llama is refused."""
    model = write_folder(by_name("llama"), path / "m")
    adapter = write_adapter_folder(path / "a", by_name("llama"), TinyAdapter(), **config)
    if tensors is not None:
        write_safetensors(adapter / "adapter_model.safetensors", tensors)
    with pytest.raises(BadAdapter) as caught:
        open_checkpoint(model, [AdapterSpec(name="a", path=str(adapter))])
    return str(caught.value)


Q = "base_model.model.model.layers.0.self_attn.q_proj"
ONES = np.ones((4, 48), np.float32)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({}, "it has no tensors"),
        ({f"{Q}.lora_A.weight": ONES}, f"'{Q}.lora_B.weight': it is missing"),
        ({f"{Q}.weight": ONES}, "does not end in"),
        (
            {"base_model.model.lm_head.lora_A.weight": ONES},
            "adapters of the embedding or the output matrix",
        ),
        (
            {f"{Q.replace('.0.', '.9.')}.lora_A.weight": ONES},
            "it is not a matrix of llama models with 2 layers",
        ),
        (
            {"base_model.model.model.visual.blocks.0.attn.qkv.lora_A.weight": ONES},
            "visual.blocks.0.attn.qkv': it changes what is beside the text model",
        ),
        (
            {f"{Q}.lora_A.weight": ONES[:, :40], f"{Q}.lora_B.weight": ONES.T},
            "its shape is (4, 40)",
        ),
        ({f"{Q}.lora_A.weight": ONES, f"{Q}.lora_B.weight": ONES}, "its shape is (4, 48)"),
        ({f"{Q}.lora_A.weight": np.ones((4, 48), np.int64)}, "it is of type I64"),
    ],
)
def test_adapters_that_do_not_fit_are_refused_with_the_tensor(
    tensors: dict[str, npt.NDArray[Any]], reason: str, tmp_path: Path
) -> None:
    assert reason in adapter_refusal(tmp_path, {}, tensors)


def test_a_pickled_adapter_is_refused(tmp_path: Path) -> None:
    adapter = write_adapter_folder(tmp_path / "x", by_name("llama"), TinyAdapter())
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    model = write_folder(by_name("llama"), tmp_path / "m")
    with pytest.raises(BadAdapter, match=r"pickled \(adapter_model\.bin\)"):
        open_checkpoint(model, [AdapterSpec(name="a", path=str(adapter))])


def test_a_broken_file_is_refused_with_its_name(tmp_path: Path) -> None:
    folder = write_folder(by_name("llama"), tmp_path / "m")
    (folder / "model.safetensors").write_bytes(bytes(7))
    with pytest.raises(BadFolder, match=r"model\.safetensors: not a valid safetensors file"):
        open_checkpoint(folder)


def test_a_folder_without_a_tokenizer_can_be_opened(tmp_path: Path) -> None:
    checkpoint = opened(write_folder(by_name("llama"), tmp_path / "m"))
    assert not checkpoint.has_tokenizer
    assert checkpoint.chat_templates == {}


def test_a_closed_checkpoint_keeps_no_file_mapped(tmp_path: Path) -> None:
    folder = write_folder(by_name("llama"), tmp_path / "m")
    with open_checkpoint(folder) as checkpoint:
        assert str(folder) in Path("/proc/self/maps").read_text()
    gc.collect()
    assert str(folder) not in Path("/proc/self/maps").read_text()
    assert checkpoint.size_bytes == (folder / "model.safetensors").stat().st_size
