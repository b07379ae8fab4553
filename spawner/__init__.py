"""gpucampus: a JupyterHub for campuses that share NVIDIA GPUs."""

__version__ = "0.1.0"
