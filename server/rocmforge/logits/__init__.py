"""Samplers of your own: functions over the logits of a request, written in Python.

    from rocmforge.logits import INF, Parameter, exp, logits_processor, reduction, where

    @reduction(over="vocabulary", by="max")
    def highest(logit):
        return logit

    @reduction(over="vocabulary", by="sum")
    def mass(logit, highest):
        return exp(logit - highest)

    @logits_processor(
        "top_a", parameters=(Parameter("a", 0.2, least=0.0, most=1.0),), needs=(highest, mass)
    )
    def top_a(logit, highest, mass, a):
        '''Drops tokens less probable than `a` times the square of the largest probability.'''
        return where(exp(logit - highest) / mass < a / (mass * mass), -INF, logit)

Named by an entry point of the group `rocmforge.logits_processors`, it is there for requests as
`{"logits_processors": {"top_a": {"a": 0.3}}}`.

The processor itself gives the new logit of one token. A function says by the names of its
arguments what it wants to see, and `needs` lists the reductions that come before it, each of which
boils the row down to a number. That is all there is to learn, and it buys this:

*   One text, three ways to run. In NumPy `logit` is the whole row, so that the host is fast too and
    serves as the oracle. On a GPU it is one token in a register, numba compiles the function ahead
    of time, and one block of threads does a row.
*   A processor sees its own row, its own parameters and its own history, and nothing else. So
    batching cannot change what a request gets. Log-probabilities stay those of the model.
*   No step waits for Python: on the device a processor is one more kernel before the draw, and the
    token that the host does not know yet is filled in there.
*   Mistakes show when a server starts: names of arguments are checked when the function is
    decorated, and what numba cannot compile is refused with its file and line.

Functions over the vocabulary have to make sense for arrays and for numbers: choose with `where`
instead of `if`, and take `exp`, `log`, `sqrt`, `minimum` and `maximum` from here. Those over the
history run for one place at a time and may use loops and `if`.

Modules: `processor` says what a processor is, `builtin` holds ours, `registry` finds installed
ones, `host` runs them in NumPy. Compiling and launching is a backend's business.
"""

from rocmforge.logits.processor import (
    INF,
    LogitsProcessor,
    Nucleus,
    Parameter,
    Reduction,
    contains,
    exp,
    log,
    logits_processor,
    maximum,
    minimum,
    nucleus,
    reduction,
    sqrt,
    where,
)

__all__ = [
    "INF",
    "LogitsProcessor",
    "Nucleus",
    "Parameter",
    "Reduction",
    "contains",
    "exp",
    "log",
    "logits_processor",
    "maximum",
    "minimum",
    "nucleus",
    "reduction",
    "sqrt",
    "where",
]
