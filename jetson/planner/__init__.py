"""What a model will take and give on a module, from bytes and arithmetic (docs/planner.md)."""
