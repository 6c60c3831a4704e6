"""The step from logits to tokens on the device, as the reference's `sampling` defines it."""

from __future__ import annotations

from typing import Final

from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import rows as row_kernels
from rocmforge_hip.kernels import sampling
from rocmforge_hip.ops.activations import Activation, ActivationArrays
from rocmforge_hip.ops.geometry import Geometry, whole_waves
from rocmforge_hip.ops.operands import f32_of
from rocmforge_hip.ops.sampling.processors import Processors
from rocmforge_hip.ops.step.device_step import DeviceStep, StagedInputs
from rocmforge_hip.ops.step.output import OutputLayout
from rocmforge_hip.weights.formats import ceil_div

_THREADS: Final = 256
_WORD_BYTES: Final = 16  # that `rf_begin_step` brings at a time


class Sampler:
    """Launches the sampling kernels. The tokens of the last step stay where they are written."""

    def __init__(
        self,
        library: KernelLibrary,
        geometry: Geometry,
        arena: ActivationArrays[DeviceArray],
        processors: Processors,
    ) -> None:
        self.processors = processors
        assert arena.sampling is not None
        assert arena.tokens is not None
        self._geometry = geometry
        self._arrays = arena.sampling
        self._arrived = arena.arrived
        self.tokens: Final = arena.sampling.tokens()
        """Those that the last step sampled, by row."""
        self._token_ids = arena.tokens
        self._begin = library.kernel("rf_begin_step", row_kernels.rf_begin_step)
        self._adjust = library.kernel("rf_sample_adjust", sampling.rf_sample_adjust)
        self._mask = library.kernel("rf_sample_mask", sampling.rf_sample_mask)
        self._max = library.kernel("rf_sample_max", sampling.rf_sample_max)
        self._filter = library.kernel("rf_sample_filter", sampling.rf_sample_filter)
        self._draw = library.kernel("rf_sample_draw", sampling.rf_sample_draw)
        self._logprobs = library.kernel("rf_logprobs", sampling.rf_logprobs)

    def begin(self, step: DeviceStep, staged: StagedInputs | None = None) -> None:
        """Writes the token ids of the step, with those of the previous step filled in.

        Args:
            step: The step.
            staged: Its inputs, to be brought first; None: they are there.
        """
        count = step.shape.tokens
        ids, source = step.inputs.token_ids, step.inputs.token_source
        words = 0
        if staged is not None:
            words = ceil_div(staged.nbytes, _WORD_BYTES)
            ids, source = staged.there(ids), staged.there(source)
        self._begin.launch(
            (ceil_div(max(count, words), _THREADS), 1, 1),
            _THREADS,
            host=None if staged is None else staged.array,
            inputs=None if staged is None else staged.inputs,
            words=words,
            token_ids=ids,
            source=source,
            previous_tokens=self.tokens,
            tokens=self._token_ids,
            count=count,
        )

    def sample(self, step: DeviceStep, logits: Activation) -> None:
        """Draws or scores a token for each row; logits stay as they are."""
        rows, vocab = logits.rows, logits.features
        if not rows:
            return
        inputs, needs, arrays = step.inputs, step.needs, self._arrays
        parts = self._geometry.sampling_parts(rows, vocab)
        grid = (parts, rows, 1)
        scores = f32_of(logits)
        if needs.adjusts:
            scores = arrays.changed.first(rows, vocab)
            self._adjust.launch(
                grid,
                _THREADS,
                logits=f32_of(logits),
                scores=scores,
                repetition=inputs.repetition,
                presence=inputs.presence,
                frequency=inputs.frequency,
                seen_offsets=inputs.seen_offsets,
                seen_tokens=inputs.seen_tokens,
                seen_counts=inputs.seen_counts,
                bias_offsets=inputs.bias_offsets,
                bias_tokens=inputs.bias_tokens,
                bias_values=inputs.bias_values,
                source=inputs.row_source,
                previous_tokens=self.tokens,
                vocab=vocab,
            )
        if needs.masks:
            self._mask.launch(grid, _THREADS, scores=scores, allowed=inputs.allowed, vocab=vocab)
        if needs.processes:
            self.processors.apply(step, scores, self.tokens)
        highest, temperature = arrays.highest, inputs.temperature
        # They take four tokens at a time.
        threads = min(_THREADS, whole_waves(ceil_div(vocab, 4 * parts)))
        self._max.launch(
            grid,
            threads,
            scores=scores,
            highest=highest,
            arrived=self._arrived,
            target=inputs.target,
            tokens=None if needs.draws else self.tokens,
            vocab=vocab,
        )
        if needs.filters:
            self._filter.launch(
                (rows, 1, 1),
                min(self._filter.max_threads, whole_waves(vocab)),
                scores=scores,
                highest=highest,
                temperature=temperature,
                log_min_p=inputs.log_min_p,
                top_k=inputs.top_k,
                top_p=inputs.top_p,
                limits=arrays.limits,
                vocab=vocab,
                parts=parts,
            )
        if needs.draws:
            self._draw.launch(
                grid,
                threads,
                scores=scores,
                highest=highest,
                temperature=temperature,
                limits=arrays.limits if needs.filters else None,
                seed=inputs.seed,
                position=inputs.draw_position,
                drawn=arrays.drawn,
                arrived=self._arrived,
                target=inputs.target,
                tokens=self.tokens,
                vocab=vocab,
            )

    def take_logprobs(self, step: DeviceStep, logits: Activation) -> None:
        """Takes the log-probabilities that rows ask for, once their tokens are there."""
        rows, needs = logits.rows, step.needs
        if not (rows and needs.logprobs):
            return
        layout = OutputLayout(rows, True, needs.num_top)
        logprobs, top_ids, top_logprobs = layout.arrays(self.tokens.address)
        self._logprobs.launch(
            (rows, 1, 1),
            min(self._logprobs.max_threads, whole_waves(logits.features)),
            logits=f32_of(logits),
            tokens=self.tokens,
            num_logprobs=step.inputs.num_logprobs,
            logprobs=logprobs,
            top_ids=top_ids,
            top_logprobs=top_logprobs,
            vocab=logits.features,
            num_top=needs.num_top,
        )
