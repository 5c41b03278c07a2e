"""Many runs at once: what is missing, where it goes, who trains it."""
