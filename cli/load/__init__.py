"""Traffic for a server on this machine: what a load test sends and how it times the answers."""
