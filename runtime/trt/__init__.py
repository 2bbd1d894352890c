"""The TensorRT backend: engines built from a bundle on the board, and run there."""
