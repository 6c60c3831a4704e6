"""Logits processors written in Python (`rocmforge.logits`), as kernels.

    source     writes the kernel of a processor, as Python that numba compiles
    worker     the child process that imports numba and compiles, for one target
    compiler   runs the worker when the backend loads, and keeps what it made on disk

`ops.sampling` launches the kernels between the mask and the draw.

Numba is never imported into the engine's process: it takes seconds, and numba-hip loads another
LLVM. What the worker makes are code objects (or PTX) like those of the prebuilt kernels.

One block of threads does one row, so that a result depends on the row alone; the order of a sum
depends on the size of the vocabulary only.
"""
