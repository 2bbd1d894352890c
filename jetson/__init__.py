"""The board: probe, planner, power, set-up."""
