"""One model on several equal devices of a host: tensor parallelism with a process per device.

Matrices are cut as in Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053, section 3): query, key,
value, gate and up by rows, so that each rank has whole heads and whole features, and the states of
its own; the matrices that read those by columns, after which the ranks add up their results; the
output matrix by rows, after which each rank collects all logits. Every rank samples, and all draw
the same tokens.

Rank 0 is the process that asked for the model. Read `runner`, then `worker`. What a rank computes
with is in `ops.sharded` and `ops.collective`, its part of the weights in `weights.shard`.
"""
