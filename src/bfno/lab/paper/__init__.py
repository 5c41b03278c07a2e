"""What the paper prints and claims, next to runs."""
