"""Simulated GPUs: an inventory, a stand-in NVML library, device nodes and a CDI spec, all from one file."""
