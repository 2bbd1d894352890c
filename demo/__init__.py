"""The demo checkpoints: a text generator, a tokenizer, a small MiMo-layout model and its trainer."""

import os

# Waiting threads sleep instead of spinning: much faster on a shared machine. Read when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
