"""Programs of the images: checks of the GPU and the environment, and tools for training."""
