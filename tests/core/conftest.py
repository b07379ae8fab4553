"""Settings of Hypothesis."""

from hypothesis import settings

# How long an example takes says more about the machine's other work than about the rules.
settings.register_profile("gpucampus", deadline=None)
settings.load_profile("gpucampus")
