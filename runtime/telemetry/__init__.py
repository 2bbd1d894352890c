"""Counting what is drafted and accepted, by window, task, position and depth, and raising alerts."""
