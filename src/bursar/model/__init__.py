"""
The model holds the data types that all rooms share: frozen values without input or output.

Times are seconds (float), amounts integer micro-units, sizes bytes.
"""
