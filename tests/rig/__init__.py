"""What the tests share: a private container engine, simulated GPUs, waiting, and what to print when a test fails."""
