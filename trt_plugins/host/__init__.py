"""Kernels of this project compiled by g++ and executed on the host: README.md."""
