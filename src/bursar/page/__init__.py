"""The files of the page that shows runs in a browser, and how they may be served."""
