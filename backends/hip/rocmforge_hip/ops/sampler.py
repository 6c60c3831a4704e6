"""From logits to tokens on the device; the meaning is that of the reference's `sampling`."""

from __future__ import annotations

from typing import Final

from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import Arena, DeviceArray
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.ops.processors import Processors
from rocmforge_hip.ops.step import DeviceStep, OutputLayout
from rocmforge_hip.weights.formats import ceil_div

_THREADS: Final = 256
_FINISH_THREADS: Final = 64


class Sampler:
    """Launches the sampling kernels. The tokens of the last step stay in the output buffer."""

    def __init__(
        self, library: KernelLibrary, geometry: Geometry, arena: Arena, processors: Processors
    ) -> None:
        self.processors = processors
        self._geometry = geometry
        self._arena = arena
        self._resolve = library.kernel("rf_resolve_tokens")
        self._adjust = library.kernel("rf_sample_adjust")
        self._mask = library.kernel("rf_sample_mask")
        self._max = library.kernel("rf_sample_max")
        self._filter = library.kernel("rf_sample_filter")
        self._draw = library.kernel("rf_sample_draw")
        self._finish = library.kernel("rf_sample_finish")
        self._logprobs = library.kernel("rf_logprobs")

    @property
    def tokens(self) -> DeviceArray:
        """What the last step sampled, by row."""
        return self._arena["output"]

    def resolve_tokens(self, step: DeviceStep) -> None:
        """Token ids of the step, with those of the previous step filled in."""
        count = step.shape.tokens
        self._resolve.launch(
            step.inputs["token_ids"],
            step.inputs["token_source"],
            self.tokens,
            self._arena["tokens"],
            count,
            grid=(ceil_div(count, _THREADS), 1, 1),
            block=_THREADS,
        )

    def sample(self, step: DeviceStep, logits: Activation) -> None:
        """Draws or scores a token for each row, and takes its log-probability where asked."""
        rows, vocab = logits.rows, logits.width
        if not rows:
            return
        assert logits.f32 is not None
        inputs, needs, arena = step.inputs, step.needs, self._arena
        parts = self._geometry.sampling_parts(rows, vocab)
        grid = (parts, rows, 1)
        scores = logits.f32
        if needs.adjusts:
            scores = arena["scores"].first(rows, vocab)
            self._adjust.launch(
                logits.f32,
                scores,
                inputs["repetition"],
                inputs["presence"],
                inputs["frequency"],
                inputs["seen_offsets"],
                inputs["seen_tokens"],
                inputs["seen_counts"],
                inputs["bias_offsets"],
                inputs["bias_tokens"],
                inputs["bias_values"],
                inputs["row_source"],
                self.tokens,
                vocab,
                grid=grid,
                block=_THREADS,
            )
        if needs.masks:
            self._mask.launch(scores, inputs["allowed"], vocab, grid=grid, block=_THREADS)
        if needs.processes:
            self.processors.apply(step, scores, self.tokens)
        highest, temperature = arena["highest"], inputs["temperature"]
        self._max.launch(scores, highest, vocab, grid=grid, block=_THREADS)
        if needs.filters:
            self._filter.launch(
                scores,
                highest,
                temperature,
                inputs["log_min_p"],
                inputs["top_k"],
                inputs["top_p"],
                arena["limits"],
                vocab,
                parts,
                grid=(rows, 1, 1),
                block=self._filter.max_threads,
            )
        if needs.draws:
            self._draw.launch(
                scores,
                highest,
                temperature,
                arena["limits"] if needs.filters else None,
                inputs["seed"],
                inputs["draw_position"],
                arena["drawn"],
                vocab,
                grid=grid,
                block=_THREADS,
            )
        self._finish.launch(
            highest,
            arena["drawn"] if needs.draws else None,
            temperature,
            inputs["target"],
            self.tokens,
            rows,
            parts,
            grid=(ceil_div(rows, _FINISH_THREADS), 1, 1),
            block=_FINISH_THREADS,
        )
        if needs.logprobs:
            layout = OutputLayout(rows, True, needs.num_top)
            logprobs, top_ids, top_logprobs = layout.arrays(self.tokens.address)
            self._logprobs.launch(
                logits.f32,
                self.tokens,
                inputs["num_logprobs"],
                logprobs,
                top_ids,
                top_logprobs,
                vocab,
                needs.num_top,
                grid=(rows, 1, 1),
                block=self._logprobs.max_threads,
            )
