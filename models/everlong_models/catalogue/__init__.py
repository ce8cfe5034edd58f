"""Models by name: the catalogue, downloading, and the choice of the default for a machine."""
