"""Custom operators: contract, NumPy oracle, ONNX function body."""
