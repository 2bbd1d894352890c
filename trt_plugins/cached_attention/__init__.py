"""The attention op with its cache: contract and NumPy oracle."""
