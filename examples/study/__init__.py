"""The paper's MNIST and CIFAR-10 study at CPU size: stages, the paper's figures, claims, text."""
