"""``selfdraft::Int4MatMul``: few fp16 rows times int4 weights in groups, at the speed of memory."""
