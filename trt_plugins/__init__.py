"""Custom operators: contract, NumPy oracle, ONNX function body, CUDA kernels and their build."""
