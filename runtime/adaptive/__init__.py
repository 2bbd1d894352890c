"""Adaptive drafting: how many drafts a step verifies, from what steps cost and what is accepted."""
