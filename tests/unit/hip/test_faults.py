"""HIP's errors and what kind of fault each is."""

from __future__ import annotations

from typing import Any

import pytest
from rocm.bindings import hip as _hip

from rocmforge.engine.ipc.messages import LoadFailed, Report, describe_error, rebuild_error
from rocmforge.engine.ipc.wire import FrameReader, encode
from rocmforge.errors import Fault
from rocmforge_hip.device.driver import HipError
from rocmforge_hip.device.faults import FAULTS, fault_of

hip: Any = _hip  # without types


def test_the_table_has_names_that_hip_has() -> None:
    assert FAULTS.keys() <= {error.name for error in hip.hipError_t}


@pytest.mark.parametrize(
    "code", ["hipErrorInvalidValue", "hipErrorOutOfMemory", "hipErrorNotFound"]
)
def test_mistakes_of_a_call_are_no_faults_of_a_device(code: str) -> None:
    assert fault_of(code) is Fault.ERROR


def test_the_kind_of_fault_reaches_the_server() -> None:
    error = HipError("hipMalloc", "hipErrorECCNotCorrectable", 0)
    reader: FrameReader[Report] = FrameReader(Report)
    (sent,) = reader.feed(encode(describe_error(error)))
    assert isinstance(sent, LoadFailed)
    assert rebuild_error(sent).fault is Fault.MEMORY
