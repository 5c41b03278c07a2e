"""Speed and memory, side by side with peers in one run: `python -m benchmarks`."""
