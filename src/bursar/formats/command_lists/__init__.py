"""Lists of commands, in the words of GNU parallel: templates, input sources, job logs, halting."""
