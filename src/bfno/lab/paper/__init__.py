"""The paper's numbers and claims, next to runs."""
