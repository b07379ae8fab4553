"""What `make run` brings for people who only try it out: an identity provider, accounts, simulated GPUs, settings."""
