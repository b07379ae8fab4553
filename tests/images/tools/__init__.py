"""Tests of images/tools: the programs that are put into every image."""
