"""Bundle to tokens: backends, decode loop, sampling, text."""
