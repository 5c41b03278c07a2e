"""Measurements and what is made of them."""
