"""What is learned: examples, inputs and targets, the loss, and what is measured."""
