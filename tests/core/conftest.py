"""Settings of Hypothesis."""

import os

from hypothesis import settings

# How long an example takes says more about the machine's other work than about the rules.
settings.register_profile("quick", deadline=None, max_examples=40)
settings.register_profile("thorough", deadline=None, max_examples=100)
settings.load_profile(os.environ.get("GPUCAMPUS_EXAMPLES", "thorough"))
