"""Where the messages of a prompt end: other prompts often part there."""

from __future__ import annotations

import numpy as np

from rocmforge.backend.arrays import Int32Array
from rocmforge.engine.sequence.sequence import Sequence


def message_ends(seq: Sequence) -> Int32Array:
    """Returns the tokens up to the end of each message, [N], N at least 1.

    A message ends with a token that would end an answer. A prompt without one is one message. Its
    last token is never reused, so nothing ends there.
    """
    last_token = seq.num_prompt - 1
    tokens = seq.tokens[:last_token]
    is_end = np.zeros(last_token, np.bool_)
    for end in seq.request.eos_ids:  # of which there are few; numpy.isin takes three times as long
        is_end |= tokens == end
    ends = np.flatnonzero(is_end) + 1
    return (ends if len(ends) else np.array([last_token])).astype(np.int32)
