"""A method of one's own: clients are pulled on the way they went when they last trained."""

from torch import Tensor

import nefl


class Onward(nefl.Objective):
    """Adds a pull to the loss; `went` is how far the client moved in its last round."""

    keeps = ("went",)
    strength = 0.01

    def loss(self, local: nefl.Local, inputs: Tensor, target: Tensor) -> Tensor:
        """Return the task's loss, and the squared distance to where the client would go on."""
        went, began = local.memory["went"], local.began
        away = [(p - began[n] - went[n]).square().sum() for n, p in local.parameters.items()]
        return super().loss(local, inputs, target) + self.strength * sum(away)

    def after(self, local: nefl.Local) -> None:
        """Remember how far the client moved."""
        local.memory["went"] = {n: p - local.began[n] for n, p in local.parameters.items()}


onward = nefl.Method("both", learned_steps=True, objective=Onward())

if __name__ == "__main__":
    print(nefl.train({"rounds": 2, "model": {"method": "own_method:onward"}}).summary)
