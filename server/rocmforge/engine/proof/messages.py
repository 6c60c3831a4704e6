"""Messages between the server process and its verifier, which computes samples again."""

from __future__ import annotations

import math

from rocmforge.backend.protocol import LoadOptions, RunnerInfo
from rocmforge.engine.ipc.message import Message
from rocmforge.engine.ipc.messages import LoadFailed, Shutdown
from rocmforge.engine.ipc.params import TokenLogprob
from rocmforge.engine.ipc.recorded import ROW_BYTES, unpack
from rocmforge.engine.proof.bounds import Bounds
from rocmforge.logs import LogFormat
from rocmforge.models.checkpoint import Identity


class BundlePolicy(Message, frozen=True):
    """Where bundles go, and what may be in them."""

    folder: str
    keeps_tokens: bool = False  # whether they hold token ids, which are prompts and answers


class Begin(Message, frozen=True, tag=True):
    """The first message to a verifier: what was loaded, and how it is judged."""

    model: str  # path
    identity: Identity | None
    runner: RunnerInfo  # of the device
    options: LoadOptions  # with which it was loaded
    bounds: Bounds
    bundles: BundlePolicy | None  # None = none are written
    log_level: str
    log_format: LogFormat


class Sample(Message, frozen=True, tag=True):
    """One sequence as a device computed it; never written to a disk as it is."""

    number: int  # of the request, within the life of the server
    tokens: tuple[int, ...]  # of prompt and answer
    first: int  # place of the first token that was recorded
    rows: bytes  # what the device found there and at the places behind it; see `ipc.recorded`
    adapter: int  # as `StepInput` numbers them
    is_broken: bool = False  # the device found a NaN at the place behind these

    @property
    def num_places(self) -> int:
        """The places that were recorded."""
        return len(self.rows) // ROW_BYTES

    @property
    def stop(self) -> int:
        """The place behind those that are computed again."""
        return self.first + self.num_places + self.is_broken

    def places(self) -> tuple[TokenLogprob, ...]:
        """Returns what was recorded at each place; of the token there, no log-probability."""
        ids, logprobs = unpack(self.rows)
        found = zip(self.tokens[self.first :], ids.tolist(), logprobs.tolist(), strict=False)
        return tuple(
            TokenLogprob(
                token_id=token,
                logprob=math.nan,
                top=tuple(each for each in zip(*top, strict=True) if each[0] >= 0),
            )
            for token, *top in found
        )


class Opened(Message, frozen=True, tag=True):
    """The verifier has loaded the model."""

    max_context: int  # tokens of the longest sequence that it computes
    token_s: float  # seconds for a token


class Checked(Message, frozen=True, tag=True):
    """The verdict on a sample."""

    number: int
    tokens: int  # verified
    agreeing: int  # of those, where both find the same token most probable
    kl_sum: float  # nats
    worst: float  # nats, the largest difference of a log-probability
    error: float  # as of `Watch`
    expected: float  # as of `Watch`
    seconds: float
    computed: int  # tokens, with those before the first that was recorded
    alarm: str | None = None  # what is wrong
    bundle: str | None = None  # the file that was written of it


ToVerifier = Begin | Sample | Shutdown
FromVerifier = Opened | Checked | LoadFailed
