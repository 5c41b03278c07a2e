"""The program: experiments, runs, and their results."""
