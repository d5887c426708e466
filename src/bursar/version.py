"""Which version of the program this is; a module of its own, so that every room may say it."""

VERSION = "0.1.0"
