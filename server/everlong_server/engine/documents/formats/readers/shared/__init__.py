"""What readers of several formats share: links, exponents, tables, fields, equations, numerals, symbols, and trees of XML."""
