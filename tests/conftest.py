"""What holds for all tests."""

from hypothesis import settings

# A busy machine is not a fault of what is tested.
settings.register_profile("no time limits", deadline=None)
settings.load_profile("no time limits")
