"""Tests of the images: what they are made of, and what is in them."""
