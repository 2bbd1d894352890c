"""``selfdraft::CachedAttention``: append to the cache and attend, one contract, several bodies."""
