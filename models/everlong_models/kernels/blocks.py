"""`BLOCK`: the number of positions that one call of a library's operation computes, counted from the first position of a pass.

The last bits of a library's product may depend on its number of rows. A pass that continues after a whole number of blocks computes products
of the same numbers, and of the same shapes, as one pass over everything. So its results are the same bit for bit.
"""

BLOCK = 192
"""Small blocks skip more of the upper triangle of the attention, large ones make better products."""
