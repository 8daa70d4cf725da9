"""The architectures that a recipe names, and how weights start them."""
