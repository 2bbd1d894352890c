"""Kernels compiled for a device, with a report of what they need, checked against limits."""
