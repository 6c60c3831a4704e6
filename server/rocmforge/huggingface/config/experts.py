"""The experts of a decoder as `config.json` has them; each class has its own names for the same."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from rocmforge.errors import UnsupportedArchitecture
from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.models.families import ModelFamily
from rocmforge.models.layer_config import ExpertsConfig, RouterFunction

_ROUTERS: Final[Mapping[str, RouterFunction]] = MappingProxyType(
    # The last is what dots calls it: a bias balances the experts, not a loss in training.
    {router.value: router for router in RouterFunction} | {"noaux_tc": RouterFunction.SIGMOID}
)
"""By `scoring_func`."""
_KEYS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
        "num_chosen": ("num_experts_per_tok", "moe_k", "moe_topk"),
        "num_groups": ("n_group",),
        "num_chosen_groups": ("topk_group",),
        "scale": ("routed_scaling_factor",),
        # Where experts have no size of their own, there is no other network.
        "intermediate_size": ("moe_intermediate_size", "intermediate_size"),
        "num_shared": ("n_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
    }
)
"""What classes call a number, by the field of `ExpertsConfig`."""


def read_experts(
    config: JsonObject, family: ModelFamily, num_layers: int
) -> tuple[ExpertsConfig | None, ...]:
    """Returns the experts of each layer; None for one that has a feed-forward network.

    Args:
        config: Of the folder.
        family: What its files leave out.
        num_layers: Layers of the model.

    Raises:
        UnsupportedArchitecture: The family has none, or they are chosen in another way.
        BadFolder: A key is missing, of the wrong type, or contradicts another; names the key.
    """
    config = _with_numbers(config)
    count = _count(config, "num_experts")
    if count == 0 or not any(has_experts := _layers_with(config, family, num_layers)):
        return (None,) * num_layers
    if family.router is None:
        raise UnsupportedArchitecture(
            f"{config.get_str('model_type')} with {count} experts", ("models without experts",)
        )
    if (method := config.get_str("topk_method", "greedy")) == "group_limited_greedy":
        raise UnsupportedArchitecture(
            f"{config.get_str('model_type')} with groups by their best expert ({method})",
            ("groups by their two best experts",),
        )
    latent = config.get_positive("moe_latent_size", 0)
    if latent and not family.may_have_latent_experts:
        raise UnsupportedArchitecture(
            f"{config.get_str('model_type')} with experts in a space of {latent} features "
            "(moe_latent_size)",
            ("experts without these",),
        )
    function = config.get_str("scoring_func", family.router.value)
    if _ROUTERS.get(function) is not family.router:
        raise UnsupportedArchitecture(
            f"{config.get_str('model_type')} with the router {function!r} (scoring_func)",
            (f"the router {family.router.value!r}",),
        )
    size = _positive(config, "intermediate_size")
    shared = config.get_positive("shared_expert_intermediate_size", 0)
    experts = ExpertsConfig(
        num_experts=count,
        num_chosen=_positive(config, "num_chosen"),
        intermediate_size=size,
        shared_intermediate_size=shared or _count(config, "num_shared") * size,
        latent_size=latent,
        router=family.router,
        num_groups=_positive(config, "num_groups", 1),
        num_chosen_groups=_positive(config, "num_chosen_groups", 1),
        normalised=config.get_bool("norm_topk_prob", family.normalises_experts),
        scale=config.get_float("routed_scaling_factor", 1.0),
    )
    if (problem := experts.problem()) is not None:
        field, reason = problem
        raise config.bad(_key(config, field), reason)
    return tuple(experts if is_there else None for is_there in has_experts)


def _with_numbers(config: JsonObject) -> JsonObject:
    """Returns the configuration with one number where a file has the same for each layer."""
    numbers = {}
    for key in (key for keys in _KEYS.values() for key in keys):
        if isinstance(config.values.get(key), list):
            found = config.get_numbers(key) or (0,)
            if len(set(found)) > 1:
                raise UnsupportedArchitecture(
                    f"{config.get_str('model_type')} with experts that differ by layer ({key})",
                    ("the same experts in every layer",),
                )
            numbers[key] = found[0]
    return config.replaced(numbers) if numbers else config


def _layers_with(config: JsonObject, family: ModelFamily, num_layers: int) -> list[bool]:
    """Returns whether each layer has experts: all but some first ones, or one of so many."""
    if family.has_one_part:
        return [kind == "moe" for kind in config.get_strings("layer_types") or ()]
    start = config.get_int("first_k_dense_replace", config.get_int("moe_layer_start_index", 0))
    end = config.get_int("moe_layer_end_index", -1)
    period = config.get_positive(
        "decoder_sparse_step", config.get_positive("moe_layer_interval", 1)
    )
    without = config.get_numbers("mlp_only_layers") or ()
    if (types := config.get_strings("mlp_layer_types")) is not None:
        if len(types) != num_layers or not {"dense", "sparse"}.issuperset(types):
            raise config.bad("mlp_layer_types", f"not {num_layers} times dense or sparse")
        return [kind == "sparse" for kind in types]
    return [
        start <= layer <= (num_layers if end == -1 else end)
        and (layer + 1) % period == 0
        and layer not in without
        for layer in range(num_layers)
    ]


def _positive(config: JsonObject, field: str, default: int | None = None) -> int:
    key = _key(config, field)
    return config.get_positive(key) if default is None else config.get_positive(key, default)


def _count(config: JsonObject, field: str) -> int:
    """Returns a number that may be 0, as it is where there is none."""
    key = _key(config, field)
    count = config.get_int(key, 0)
    if not 0 <= count < 1 << 31:
        raise config.bad(key, f"{count} is no count")
    return count


def _key(config: JsonObject, field: str) -> str:
    """Returns what this configuration calls a number."""
    names = _KEYS[field]
    return next((name for name in names if config.has(name)), names[0])
