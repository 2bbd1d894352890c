"""Checkpoint to bundle (needs torch)."""
