"""The unified framework: objectives, step sizes, the two halves of its optimisers."""
