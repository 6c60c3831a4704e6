"""What devices with waves of 64 lanes compute (MI200, MI300): whole models, and small values."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
# All cache types, every group of architectures, every family of stored types.
DECODERS = (
    "test_every_architecture_gives_the_references_tokens and (llama] or gemma3] or phi3]) or "
    "test_every_stored_type_gives_the_references_logits and (q8_0 or q4_1 or q4_k or q6_k) or "
    "test_a_rounded_cache or test_so_do_all_steps or test_sampling_settings"
)
# Those of the cases, and halves and floats, which the tiny models have: the kernels of the others
# need not be compiled for this wave.
FORMATS = "q8_0,q4_1,q4_k,q6_k,f16,bf16,f32"
# Halves that matrix instructions of MI200, and with this wave those of the host, take for zero.
SMALL = "small and not larger"
KERNELS = (
    "attention/test_attention_full.py",
    "experts/test_grouped_gemm.py",
    "matrices/test_gemm.py",
    "recurrent/test_gated_delta.py",
)
ENCODERS = (
    "test_every_architecture_gives_the_references_states or test_so_do_larger_heads or "
    "test_quantised_matrices_give_the_references_states and q8_0-nomic"
)


@pytest.mark.slow
@pytest.mark.timeout(900)  # the kernels are compiled first
@pytest.mark.parametrize(
    ("files", "cases", "count"),
    [
        (["tests/e2e/hip/models/test_hip_models.py"], DECODERS, 16),
        (["tests/e2e/hip/models/test_hip_encoders.py"], ENCODERS, 11),
        ([f"tests/kernels/{name}" for name in KERNELS], SMALL, 9),
    ],
    ids=["decoders", "encoders", "kernels_with_small_values"],
)
def test_waves_of_64_lanes(
    files: list[str], cases: str, count: int, request: pytest.FixtureRequest
) -> None:
    """In a process of its own: the checking library has one wave size."""
    options = request.config
    if options.getoption("--platform") != "host" or options.getoption("--wave") == 64:
        pytest.skip("for the host platform, where the other tests run waves of 32 lanes")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--wave", "64"]
    command += ["--matrix-formats", FORMATS]
    command += [*files, "-k", cases]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-4000:]
    assert f"{count} passed" in result.stdout, result.stdout[-500:]
