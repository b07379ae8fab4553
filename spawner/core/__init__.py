"""Pure rules: values in, values out; no clock, environment, disk, network or randomness."""
