"""Members within, each with a classifier of its own: an arm of the study."""

from torch import nn

import nefl
from nefl.client.within import Within
from nefl.nesting.modules import BatchNorm, StepSize

within = nefl.Method(
    "both",
    (BatchNorm, StepSize, nn.Linear),
    learned_steps=True,
    objective=Within("smallest", leave=1.0),
    about="NeFL-WD within, the corner left to the smallest, a classifier for each",
)
