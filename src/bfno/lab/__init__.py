"""The program: experiments, runs, and what is made of them."""
