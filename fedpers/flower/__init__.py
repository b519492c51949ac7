"""The two base classes on Flower's interfaces, and the messages between them."""
