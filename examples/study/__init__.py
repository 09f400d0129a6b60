"""The paper's study at CPU size: what is run, how it is run, and the page made of it."""
