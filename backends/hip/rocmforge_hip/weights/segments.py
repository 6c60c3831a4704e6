"""How several devices cut an axis of a weight: the heads or features that it consists of.

Each device has as many whole heads as the others. Where an axis has several kinds of them, one
after the other, each kind is a segment and is cut for itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocmforge.models.blocks import Role, Size, WeightPlace
from rocmforge.models.config import ModelConfig
from rocmforge.models.layer_config import DeltaConfig, LayerConfig, MambaConfig


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive elements of an axis that are heads of one kind, or groups or features."""

    heads: int
    what: str  # their name, for messages
    size: int = 1  # elements of each
    # Where there are more devices than heads, several devices have the same one.
    is_shared: bool = False

    @property
    def elements(self) -> int:
        """Elements of all heads."""
        return self.heads * self.size

    def part(self, rank: int, devices: int) -> range:
        """Returns the elements that a device has, counted from the first of the segment."""
        first, end = rank * self.heads // devices, (rank + 1) * self.heads // devices
        return range(first * self.size, max(end, first + 1) * self.size)

    def problem(self, devices: int, multiple: int = 1) -> str | None:
        """Returns why so many devices cannot cut it; None if they can.

        Args:
            devices: So many.
            multiple: What the heads of each device must be a multiple of.
        """
        if self.heads % (devices * multiple) == 0:
            return None
        wanted = f"its {self.heads} {self.what} are not a multiple of {devices * multiple}"
        if not self.is_shared or multiple > 1:
            return wanted
        return None if devices % self.heads == 0 else f"{wanted} and do not divide it"


def cut_axis(place: WeightPlace) -> int | None:
    """Returns the axis by which a weight is cut; None if every device has all of it."""
    declared = place.declared
    match declared.role:
        case Role.REPLICATED:
            return None
        case Role.COLUMN | Role.EXPERT:
            return 0
        case Role.ROW:  # a bias is added to the sum of all devices' results
            return len(declared.shape) - 1 if len(declared.shape) > 1 else None


def segments_of(config: ModelConfig, place: WeightPlace) -> tuple[Segment, ...]:
    """Returns what the cut axis of a weight consists of."""
    axis = cut_axis(place)
    assert axis is not None, f"{place.path} is whole on every device"
    size = place.declared.shape[axis]
    if place.layer is None:
        return (Segment(getattr(config, size), "tokens of the vocabulary"),)
    layer = config.layers[place.layer]
    if (delta := layer.delta) is not None and (found := _of_delta(delta, size)):
        return found
    if (mamba := layer.mamba) is not None and (found := _of_mamba(mamba, size)):
        return found
    return _of_layer(layer, size)


def _of_layer(layer: LayerConfig, size: Size) -> tuple[Segment, ...]:
    elements, heads, kv_heads = getattr(layer, size), layer.num_heads, layer.num_kv_heads
    match size:
        case "key_features" | "value_features":
            what = "key-value heads"
            return (Segment(kv_heads, what, elements // kv_heads, is_shared=True),)
        case (
            "query_features"
            | "num_heads"
            | "attended_features"
            | "latent_query_features"
            | "direct_query_features"
            | "latent_attended_features"
        ):
            return (Segment(heads, "heads", elements // heads),)
        case "convolved_features":
            return (Segment(elements, "channels of the short convolution"),)
        case "gated_features":
            return (Segment(elements // 3, "channels of the short convolution"),) * 3
        case "intermediate_size":
            return (Segment(elements, "features of the feed-forward"),)
        case "shared_intermediate_size":
            return (Segment(elements, "features of the shared expert"),)
        case "num_experts":
            return (Segment(elements, "experts"),)
    raise AssertionError(f"nothing says how devices cut {size}")


def _of_delta(delta: DeltaConfig, size: Size) -> tuple[Segment, ...]:
    """Returns the segments of Gated DeltaNet; none of another axis.

    A device has the value heads of its key heads. Where they are tiled, these are some of every
    round of key heads, and the device's are tiled like that again.
    """
    rounds = delta.num_value_heads // delta.num_key_heads if delta.is_tiled else 1
    count, what = delta.num_value_heads // rounds, "heads of values"
    keys = Segment(delta.num_key_heads, "heads of keys", delta.key_dim)
    match size:
        case "convolved_features":
            return (keys, keys, *(Segment(count, what, delta.value_dim),) * rounds)
        case "delta_value_features":
            return (Segment(count, what, delta.value_dim),) * rounds
        case "delta_value_heads":
            return (Segment(count, what),) * rounds
    return ()


def _of_mamba(mamba: MambaConfig, size: Size) -> tuple[Segment, ...]:
    """Returns the segments of Mamba-2; none of another axis.

    Where there is one group, all devices have it: a norm of theirs adds up what they have.
    """
    heads = Segment(mamba.num_heads, "heads of Mamba-2", mamba.head_dim)
    one = mamba.num_groups == 1
    groups = Segment(mamba.num_groups, "groups of Mamba-2", mamba.state_size, is_shared=one)
    steps = Segment(mamba.num_heads, "heads of Mamba-2")
    match size:
        case "mamba_input_features":
            return (heads, heads, groups, groups, steps)
        case "convolved_features":
            return (heads, groups, groups)
        case "mamba_inner_features":
            return (heads,)
        case "mamba_heads":
            return (steps,)
    return ()
