"""Tests with real containers on the private engine."""
