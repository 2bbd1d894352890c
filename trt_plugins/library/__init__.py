"""The TensorRT plugin library: C++ in ``csrc``, and what compiles and describes it."""
