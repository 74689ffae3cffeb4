"""FlexFlow's callbacks; those of espalier.callbacks."""

from espalier.callbacks import *  # noqa: F403
