"""Tests of what `make run` does, and of the image build."""
