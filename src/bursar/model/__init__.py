"""
The nouns: frozen values without input or output.

Times are seconds (float), amounts integer micro-units, sizes bytes.
"""
