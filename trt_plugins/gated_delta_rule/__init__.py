"""``selfdraft::GatedDeltaRule``: linear attention with a recurrent state (docs/gated_delta.md)."""
