"""Tests; the folders mirror the tree. tests/rig holds what they share."""
